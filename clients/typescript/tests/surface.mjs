// @ts-nocheck: the compiler is found by the module's folder, and so without its types
//
// Prints what a TypeScript module exports, as JSON: each name, and of a class, an interface or an
// object type its public members, with the names of what each takes (of an object of options, its own).
// Usage: node surface.mjs MODULE.ts

import { createRequire } from "node:module";
import { resolve } from "node:path";

const file = resolve(process.argv[2]);
const ts = createRequire(file)("typescript");
const program = ts.createProgram([file], {
  module: ts.ModuleKind.NodeNext,
  moduleResolution: ts.ModuleResolutionKind.NodeNext,
  strict: true,
  target: ts.ScriptTarget.ES2022,
});
const checker = program.getTypeChecker();
const folder = resolve(file, "..");
const isOurs = (symbol) =>
  (symbol.declarations ?? []).some((one) => one.getSourceFile().fileName.startsWith(folder));
// What the package leaves out is nobody's to use.
const isPublic = (symbol) =>
  !(symbol.declarations ?? []).some((one) =>
    ts.getJSDocTags(one).some(({ tagName }) => tagName.text === "internal"),
  );
const named = (type) => (type.isUnion() ? type.types : [type]).flatMap((one) => one.getProperties());

function given(parameter) {
  const type = checker.getNonNullableType(checker.getTypeOfSymbol(parameter));
  const one = type.isUnion() ? type.types[0] : type;
  const options =
    one.flags & ts.TypeFlags.Object && /Options$|^Wanted$|^NewMessage$|^__type$/.test(one.symbol?.name ?? "");
  return options
    ? named(one)
        .filter((member) => isOurs(member) && isPublic(member))
        .map(({ name }) => name)
    : [parameter.name];
}

function members(symbol) {
  const type = checker.getDeclaredTypeOfSymbol(symbol);
  const found = {};
  for (const member of named(type)) {
    if (!isOurs(member) || !isPublic(member) || /^(#|__)/.test(member.name)) continue;
    const calls = checker.getTypeOfSymbol(member).getCallSignatures();
    const isCall = member.flags & ts.SymbolFlags.Method;
    found[member.name] = isCall ? calls.flatMap((one) => one.parameters.flatMap(given)) : null;
  }
  return found;
}

const module = checker.getSymbolAtLocation(program.getSourceFile(file));
const surface = {};
for (const one of checker.getExportsOfModule(module)) {
  const symbol = one.flags & ts.SymbolFlags.Alias ? checker.getAliasedSymbol(one) : one;
  surface[one.name] = members(symbol);
}
console.log(JSON.stringify(surface));

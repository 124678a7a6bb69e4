// What the relay says in English, in another language: which sentence of a table it is, and what its
// values are.  strings.js loads this for those who read another language, and for nobody else.

// `table`: of the language, which grows by what is learnt; `t` and `named`: those of strings.js.
export function speaker(language, table, { t, named }) {
  let patterns = [];
  const learnt = {};
  // What `part` of the relay says, which only some views show (strings.de.checks.js and others): learnt
  // once, before `spoken` is asked for any of it.
  const learn = (part) => (learnt[part] ??= import(`/ui/strings.${language}.${part}.js`).then(({ default: more }) => {
    Object.assign(table, more);
    const length = (key) => key.replace(/\{\d\}/g, "").length; // the more a key says itself, the surer it is
    patterns = Object.keys(more).filter((key) => key.includes("{0}")).map((key) => [key, new RegExp(`^${key.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/\{\d\}/g, "(.+?)")}$`, "s")])
      .concat(patterns).sort(([one], [other]) => length(other) - length(one));
  }, () => null));

  // The numbers in a sentence, and who is paused, are its values, and whatever is quoted in one that
  // was learnt; what stands behind a colon is kept as it is, where only what is before it is known.
  function spoken(text) {
    if (Object.hasOwn(table, text)) return t(text);
    const [, who, state, why] = /^(.+) is (starting|draining|backing_off|stopped)\b(.*)$/s.exec(text) ?? [];
    if (state) return `${who}: ${named(state)}${why.replace(/^(, )after failures of/, (_, comma) => comma + t("after failures of"))}`;
    const values = [];
    const key = text.replace(/\d+|^\S+(?= is paused\.$)/g, (value) => `{${values.push(value) - 1}}`);
    if (Object.hasOwn(table, key)) return t(key, ...values);
    const pieces = text.split("; ");
    if (pieces[1]) {
      const said = pieces.map(spoken);
      if (said.some(Boolean)) return said.map((one, at) => one ?? pieces[at]).join("; ");
    }
    for (const [sentence, pattern] of patterns) {
      const found = pattern.exec(text);
      if (found) return t(sentence, ...found.slice(1).map((value) => spoken(value) ?? value));
    }
    const [head, ...rest] = text.split(": ");
    if (!rest.length) return null;
    const [before, after] = [spoken(head), spoken(rest.join(": "))];
    return before || after ? `${before ?? head}: ${after ?? rest.join(": ")}` : null;
  }

  // A sentence of a refusal; tables have it without the name of the field that it is about, which is
  // kept, and without its full stop.
  function refused(sentence) {
    const [, text, stop] = /^(.*?)(\.?)$/s.exec(sentence);
    const [, name, fault] = /^([\w.[\]]+): (?!\w+: )(.+)$/s.exec(text) ?? [];
    const said = fault && !fault.includes("; ") && !Object.hasOwn(table, text) && spoken(fault);
    const whole = said ? `${name}: ${said}` : spoken(text);
    return whole && whole + stop;
  }

  // What a refusal says: each sentence that is known, the others behind its title.
  async function refusal(title, said) {
    await learn("refusals");
    const kind = spoken(title);
    return said.map((one) => refused(one) ?? (kind ? `${kind}: ${one}` : one)).join(" ");
  }
  return { learn, spoken, refusal };
}

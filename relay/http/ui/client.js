// Made by scripts/page.mjs of relay-client (clients/typescript); a test finds what is not so any more.

const MAX_NAME = 200;
const DRIVES = /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
function visible(text, maxLength = Infinity) {
    const shown = text
        .slice(0, 9 * maxLength)
        .replaceAll("\r\n", "\n")
        .replace(DRIVES, (one) => {
        const code = one.codePointAt(0).toString(16);
        return code[4] ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
    })
        .replace(/^([^\S\n]*):(?=:)/gm, "$1\\u003a")
        .replace(/#(?=#(\[|vso\[|teamcity\[))/gi, "\\u0023");
    const all = [...shown];
    return all[maxLength]
        ? all.slice(0, maxLength - 1).join("").replace(/\\(u[{0-9a-f]*)?$/, "") + "…"
        : shown;
}
function inALine(text, maxLength = Infinity) {
    const some = text.slice(0, 9 * maxLength);
    return visible(some.replace(/[\n\r\t]/g, (one) => JSON.stringify(one).slice(1, -1)), maxLength);
}
function quoted(text) {
    const line = inALine(text.replaceAll("\\", "\\\\"), MAX_NAME);
    return line.includes("'") && !line.includes('"')
        ? `"${line}"`
        : `'${line.replaceAll("'", "\\'")}'`;
}

class RelayError extends Error {
    name = "RelayError";
    constructor(message, options) {
        super(visible(message, 20_000), options);
    }
}
class Unreachable extends RelayError {
    name = "Unreachable";
}
class Refused extends RelayError {
    status;
    problem;
    detail;
    errors;
    retryAfter;
    title;
    name = "Refused";
    constructor(status, problem, detail, errors = [], retryAfter = 0, title = "") {
        const more = errors.filter((error) => error !== detail);
        super(`${status} ${problem}: ${[detail, ...more].join(" ")}`);
        this.status = status;
        this.problem = problem;
        this.detail = detail;
        this.errors = errors;
        this.retryAfter = retryAfter;
        this.title = title;
    }
}

const VERSION = "0.1.0";

const REFUSAL = 1 << 20;
class Caller {
    base;
    #headers;
    #fetch;
    #heard;
    constructor({ url, token, fetch }, heard) {
        this.base = url.replace(/\/+$/, "");
        this.#headers = {
            Accept: "application/json",
            ...(globalThis.process && {
                "User-Agent": `relay-client/${VERSION}`,
                "Accept-Encoding": "identity",
            }),
            ...(token && { Authorization: `Bearer ${token}` }),
        };
        this.#fetch = fetch ?? globalThis.fetch.bind(globalThis);
        this.#heard = heard;
    }
    async once({ method, path, query, body, headers }, signal) {
        const values = Object.entries(query ?? {}).map(([name, value]) => [name, String(value)]);
        const asked = query ? `${path}?${new URLSearchParams(values)}` : path;
        let answer;
        let read;
        try {
            answer = await this.#fetch(`${this.base}${asked}`, {
                method,
                headers: {
                    ...this.#headers,
                    ...(body !== undefined && { "Content-Type": "application/json" }),
                    ...headers,
                },
                body: body === undefined ? null : JSON.stringify(body),
                signal: signal ?? null,
                cache: "no-store",
                redirect: "manual",
            });
            this.#heard?.(answer.headers);
            if (answer.ok)
                return answer;
            read = await bytesOf(answer, REFUSAL);
        }
        catch (error) {
            throw new Unreachable(`the relay does not answer ${method} ${this.base}${path}`, {
                cause: error,
            });
        }
        throw refused({ status: answer.status, headers: answer.headers, ...read });
    }
}
async function bytesOf(answer, maxBytes) {
    const coding = (globalThis.process && answer.headers.get("Content-Encoding")) || "identity";
    if (coding.toLowerCase() !== "identity") {
        await answer.body?.cancel().catch(() => { });
        return { bytes: new Uint8Array(), fault: `it comes as ${quoted(coding)}` };
    }
    const pieces = [];
    let size = 0;
    const reader = answer.body?.getReader();
    for (;;) {
        const piece = (await reader?.read())?.value;
        if (!piece)
            break;
        pieces.push(piece.subarray(0, maxBytes - size));
        size += piece.length;
        if (size > maxBytes)
            break;
    }
    const bytes = new Uint8Array(Math.min(size, maxBytes));
    let at = 0;
    for (const piece of pieces) {
        bytes.set(piece, at);
        at += piece.length;
    }
    if (size <= maxBytes)
        return { bytes };
    await reader?.cancel().catch(() => { });
    return { bytes, fault: `it says more than ${maxBytes >> 20} MiB` };
}
function refused(answer) {
    const { status, headers, bytes, fault } = answer;
    try {
        const problem = JSON.parse(new TextDecoder().decode(bytes));
        const { type, detail, errors, title } = problem;
        if (fault === undefined && typeof type === "string" && typeof detail === "string") {
            const each = Array.isArray(errors) ? errors.map(String) : [];
            const kind = type.split(/[:/]/).pop() ?? type;
            return new Refused(status, kind, detail, each, retryIn(headers), String(title ?? ""));
        }
    }
    catch {
    }
    return noRelay(answer);
}
function noRelay({ status, headers, bytes, fault }, why = fault) {
    const url = headers.get("Location");
    const leads = url !== null && status >= 300 && status < 400;
    const said = leads
        ? `it leads to ${url}`
        : (why ?? quoted(new TextDecoder().decode(bytes.subarray(0, 100)).trim()));
    return new Refused(status, "unknown", `no relay answered: ${said}`, [], retryIn(headers));
}
function retryIn(headers) {
    const seconds = Number(headers.get("Retry-After"));
    return seconds > 0 && seconds < Infinity ? seconds : 0;
}

export { Caller, Refused };

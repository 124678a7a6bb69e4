// Made by scripts/page.mjs of relay-client (clients/typescript); a test finds what is not so any more.

class RelayError extends Error {
    name = "RelayError";
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
function quoted(text) {
    const line = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"');
    return line.includes("'") && !line.includes('"')
        ? `"${line}"`
        : `'${line.replaceAll("'", "\\'")}'`;
}

const VERSION = "0.1.0";

class Caller {
    base;
    #headers;
    #fetch;
    #heard;
    constructor({ url, token, fetch }, heard) {
        this.base = url.replace(/\/+$/, "");
        this.#headers = {
            Accept: "application/json",
            ...(globalThis.process && { "User-Agent": `relay-client/${VERSION}` }),
            ...(token && { Authorization: `Bearer ${token}` }),
        };
        this.#fetch = fetch ?? globalThis.fetch.bind(globalThis);
        this.#heard = heard;
    }
    async once({ method, path, query, body, headers }, signal) {
        const values = Object.entries(query ?? {}).map(([name, value]) => [name, String(value)]);
        const asked = query ? `${path}?${new URLSearchParams(values)}` : path;
        let answer;
        let bytes;
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
            bytes = await answer.arrayBuffer();
        }
        catch (error) {
            throw new Unreachable(`the relay does not answer ${method} ${this.base}${path}`, {
                cause: error,
            });
        }
        const retryAfter = Number(answer.headers.get("Retry-After")) || 0;
        const { status, headers: said } = answer;
        throw refused(status, new Uint8Array(bytes), retryAfter, said.get("Location"));
    }
}
function refused(status, bytes, retryAfter = 0, location = null) {
    try {
        const problem = JSON.parse(new TextDecoder().decode(bytes));
        const { type, detail, errors, title } = problem;
        if (typeof type === "string" && typeof detail === "string") {
            const each = Array.isArray(errors) ? errors.map(String) : [];
            const kind = type.split(/[:/]/).pop() ?? type;
            return new Refused(status, kind, detail, each, retryAfter, String(title ?? ""));
        }
    }
    catch {
    }
    const leads = location !== null && status >= 300 && status < 400;
    const said = leads
        ? `it leads to ${location}`
        : quoted(new TextDecoder().decode(bytes.subarray(0, 200)).trim());
    return new Refused(status, "unknown", `no relay answered: ${said}`, [], retryAfter);
}

export { Caller, Refused };

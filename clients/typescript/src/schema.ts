/* Made by scripts/schema.mjs of a relay's /openapi.json; a test finds what is not so any more. */

export interface paths {
    "/api/v1/mailboxes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Make a mailbox */
        post: operations["createMailbox"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/mailboxes/{address}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** End a mailbox */
        delete: operations["deleteMailbox"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/mailboxes/{address}/refused": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List recipients that SMTP has refused since a mailbox was made */
        get: operations["listRefused"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/mailboxes/{address}/captured": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List recipients for whom mail was captured since a mailbox was made */
        get: operations["listCaptured"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/mailboxes/{address}/messages/wait": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Wait for a message */
        get: operations["waitForMessage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/mailboxes/{address}/messages": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List messages, newest first */
        get: operations["listMessages"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/mailboxes/{address}/messages/{message_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Read a message, and mark it read */
        get: operations["getMessage"];
        put?: never;
        post?: never;
        /** Delete a message for good */
        delete: operations["deleteMessage"];
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/mailboxes/{address}/messages/{message_id}/raw": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Fetch a message byte for byte as it was accepted */
        get: operations["getRawMessage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/mailboxes/{address}/messages/{message_id}/attachments/{index}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Download an attachment */
        get: operations["getAttachment"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/mailboxes/{address}/messages/{message_id}/checks": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Say whether the world would take a message: SPF, DKIM, DMARC, and what readers miss */
        get: operations["checkMessage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/messages/send": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Send a message to one or more recipients */
        post: operations["sendMessage"];
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/outbound/{message_id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Show a message that was sent */
        get: operations["getSentMessage"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/api/v1/info": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Say where this relay takes mail, and for which domains */
        get: operations["getInfo"];
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description An attachment, by its index. */
        AttachmentEntry: {
            index: number;
            filename: string | null;
            content_type: string;
            size: number;
            content_id: string | null;
        };
        /** @description A recipient for whom mail was captured. */
        CapturedEntry: {
            address: string;
            /**
             * Format: date-time
             * @description when the last of it came
             */
            at: string;
            /** @description how many messages */
            count: number;
            /** @description whether it is known to have been meant; false: its sender had not signed in, and may be another test's */
            attributed: boolean;
        };
        /** @description One check: its result in the words of RFC 8601, and why. */
        Check: {
            /** @description pass, fail, softfail, neutral, none (nothing to go by), permerror (a mistake of the domain's), temperror (the DNS did not answer) */
            result: string;
            detail: string;
        };
        /** @description What the world would say to a message. */
        Checks: {
            spf: components["schemas"]["Check"];
            dkim: components["schemas"]["Check"];
            dmarc: components["schemas"]["Check"];
            /** @description 10: nothing to mend */
            score: number;
            /** @description what the score is short of 10 for, and by */
            reasons: string[];
            findings: components["schemas"]["FindingEntry"][];
        };
        /** @description A mailbox just made; its token is shown this once. */
        CreatedMailbox: {
            address: string;
            /** Format: date-time */
            expires_at: string;
            session_token: string | null;
            plan: string;
        };
        /** @description One thing to mend. */
        FindingEntry: {
            id: string;
            /** @enum {string} */
            severity: "error" | "warning" | "note";
            text: string;
        };
        /**
         * @description This relay: its ports, and what it takes mail for.
         *
         *     A port is host:port, `lmtp` the path of a socket; null: not served here.  `…_tls`: with TLS from
         *     the first byte.  `starttls`: whether the others begin TLS by a command.  `release`: whether what
         *     came in may be sent on to anybody.
         */
        Info: {
            version: string;
            smtp: string | null;
            lmtp: string | null;
            submission: string | null;
            submission_tls: string | null;
            pop3: string | null;
            pop3_tls: string | null;
            starttls: boolean;
            domains: string[];
            capture: boolean;
            release: boolean;
            public_url: string;
        };
        /** @description A file to go with a message. */
        NewAttachment: {
            filename: string;
            /** @default application/octet-stream */
            content_type?: string;
            /** @description the bytes, in base64 */
            content: string;
        };
        /** @description What a new mailbox is to be; all of it may be left out. */
        NewMailbox: {
            /**
             * @description minutes to live, cut to the plan's limit
             * @default null
             */
            ttl_minutes?: number | null;
            /**
             * @description what stands before the @; random when left out. Without a credential of a-z, 0-9, and . _ + - only
             * @default null
             */
            local_part?: string | null;
            /**
             * @description one of the relay's domains; the first when left out
             * @default null
             */
            domain?: string | null;
            /**
             * @description where new messages are announced
             * @default null
             */
            webhook_url?: string | null;
        };
        /** @description What is to be sent to whom. */
        NewMessage: {
            /** @description an address, or Name <address> */
            from: string;
            /** @description addresses, each of which gets a message of its own */
            to: string[] | string;
            /** @default  */
            subject?: string;
            /** @default null */
            text?: string | null;
            /** @default null */
            html?: string | null;
            /**
             * @description further headers, such as Reply-To and List-Unsubscribe; those that the relay makes (From, To, Subject, Date, Message-ID, MIME) cannot be given
             * @default {}
             */
            headers?: {
                [key: string]: string;
            };
            /** @default [] */
            attachments?: components["schemas"]["NewAttachment"][];
            /**
             * @default normal
             * @enum {string}
             */
            priority?: "high" | "normal" | "bulk";
            /**
             * @description not before then; what is past means at once
             * @default null
             */
            send_at?: string | null;
            /**
             * @description not after then: what waits still is cancelled, with the error expired, and webhooks are told message.expired
             * @default null
             */
            not_after?: string | null;
            /**
             * @description what to do when a connection broke between the end of the message and its answer: send again, perhaps a second copy, or hold it for a person to decide
             * @default retry
             * @enum {string}
             */
            unknown_outcome?: "retry" | "hold";
        };
        /**
         * @description One message to one recipient; sender, recipient, subject and tag are null to all but its
         *     owner.
         */
        OutboundMessage: {
            id: string;
            /** @description its reverse-path */
            sender: string | null;
            recipient: string | null;
            subject: string | null;
            status: components["schemas"]["State"];
            attempts: number;
            next_retry_at: string | null;
            sent_at: string | null;
            priority: string;
            error: string | null;
            /** Format: date-time */
            created_at: string;
            not_after: string | null;
            tag: string | null;
            /** @description that of the last attempt, as in its events */
            peer: string | null;
            /** @description that of the last attempt, as in its events */
            tls: string | null;
            /** @description what the server said that took it, redacted as `error` is */
            reply: string | null;
        };
        /** @description A message in a list, and after a change of it. */
        PlacedEntry: {
            id: string;
            from_address: string | null;
            subject: string | null;
            /** Format: date-time */
            received_at: string;
            is_read: boolean;
            /** @description other than pictures that its HTML shows; null: not parsed */
            has_attachments: boolean | null;
            /** @description bytes of the raw message */
            size: number;
            /** @description its address */
            mailbox: string;
            tags: string[];
            /** @description how its text begins; null until it was parsed */
            snippet: string | null;
            /** @description a one-time code, if one was found */
            otp: string | null;
            /** @description what the sender is called beside the address */
            from_name: string | null;
        };
        /** @description A message with everything that was found in it, and where it is. */
        PlacedMessage: {
            id: string;
            from_address: string | null;
            subject: string | null;
            /** Format: date-time */
            received_at: string;
            is_read: boolean;
            /** @description other than pictures that its HTML shows; null: not parsed */
            has_attachments: boolean | null;
            /** @description bytes of the raw message */
            size: number;
            to: string;
            /** @description a name that repeats has a list of values */
            headers: {
                [key: string]: string | string[];
            };
            body_text: string | null;
            body_html: string | null;
            attachments: components["schemas"]["AttachmentEntry"][];
            /** @description a one-time code, if one was found */
            otp: string | null;
            links: string[];
            /** @description why parsing was partial */
            error: string | null;
            /** @description its address */
            mailbox: string;
            tags: string[];
            snippet: string | null;
            from_name: string | null;
        };
        /** @description One message of the queue. */
        QueuedMessage: {
            id: string;
            recipient: string;
            status: string;
        };
        /** @description A recipient that SMTP has refused. */
        RefusedEntry: {
            address: string;
            /**
             * @description `expired`: its mailbox is over, or was deleted
             * @enum {string}
             */
            why: "unknown" | "expired" | "over_quota" | "filter";
            /** @description the last one to RCPT, or to the message */
            reply: string;
            /**
             * Format: date-time
             * @description when it was refused last
             */
            at: string;
            /** @description how often it was refused */
            count: number;
            /** @description as whom its sender had signed in, where mail is captured and any name is taken; what others sent to the address is an entry of its own */
            login: string | null;
        };
        /** @description What a call queued: one message a recipient, in the order of `to`. */
        Sent: {
            messages: components["schemas"]["QueuedMessage"][];
        };
        /**
         * @description The state of a message; the value is what `relay.outbound_messages.status` shows.
         * @enum {string}
         */
        State: "queued" | "processing" | "sent" | "failed" | "bounced" | "cancelled" | "held";
        /** @description A message with everything that was found in it. */
        WholeMessage: {
            id: string;
            from_address: string | null;
            subject: string | null;
            /** Format: date-time */
            received_at: string;
            is_read: boolean;
            /** @description other than pictures that its HTML shows; null: not parsed */
            has_attachments: boolean | null;
            /** @description bytes of the raw message */
            size: number;
            to: string;
            /** @description a name that repeats has a list of values */
            headers: {
                [key: string]: string | string[];
            };
            body_text: string | null;
            body_html: string | null;
            attachments: components["schemas"]["AttachmentEntry"][];
            /** @description a one-time code, if one was found */
            otp: string | null;
            links: string[];
            /** @description why parsing was partial */
            error: string | null;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export interface operations {
    createMailbox: {
        parameters: {
            query?: {
                /** @description minutes to live, cut to the plan's limit */
                ttl_minutes?: number | null;
                /** @description what stands before the @; random when left out. Without a credential of a-z, 0-9, and . _ + - only */
                local_part?: string | null;
                /** @description one of the relay's domains; the first when left out */
                domain?: string | null;
                /** @description where new messages are announced */
                webhook_url?: string | null;
            };
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: {
            content: {
                "application/json": components["schemas"]["NewMailbox"];
            };
        };
        responses: {
            /** @description it accepts mail from now on */
            201: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CreatedMailbox"];
                };
            };
        };
    };
    deleteMailbox: {
        parameters: {
            query?: {
                /** @description true: raw mail, summaries and attachments are gone at once */
                purge?: boolean;
            };
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description it accepts and shows nothing from now on */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    listRefused: {
        parameters: {
            query?: {
                /** @description as whom its sender had signed in; empty: nobody */
                login?: string | null;
            };
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description the newest hundred, newest first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["RefusedEntry"][];
                };
            };
        };
    };
    listCaptured: {
        parameters: {
            query?: {
                /** @description as whom its sender had signed in */
                login?: string | null;
            };
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description a hundred at most, the last one first */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["CapturedEntry"][];
                };
            };
        };
    };
    waitForMessage: {
        parameters: {
            query?: {
                /** @description seconds */
                timeout?: number;
                /** @description a part of the From address */
                from?: string | null;
                /** @description a part of the subject */
                subject?: string | null;
                /** @description a message id or a time, exclusive */
                after?: string | null;
                /** @description null: the time-out is 200 with the JSON null, not 204 with nothing */
                empty?: "null" | null;
            };
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description the oldest match; it is not marked read; null when none came in time and `empty=null` was said */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WholeMessage"] | null;
                };
            };
            /** @description none came in time */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    listMessages: {
        parameters: {
            query?: {
                /** @description rows at most; more than 200 gives 200 */
                limit?: number;
                /** @description rows to skip */
                offset?: number;
                /** @description from the Link header of the page before */
                cursor?: string | null;
                /** @description what to look for, as in GET /api/v1/messages */
                q?: string | null;
                /** @description give each as reading it does, and mark it read; of large ones fewer. The first page waits until what has come is parsed, some seconds at most */
                whole?: boolean;
            };
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description a page of them */
            200: {
                headers: {
                    /** @description the next page, rel="next"; absent on the last */
                    Link?: string;
                    [name: string]: unknown;
                };
                content: {
                    "application/json": (components["schemas"]["PlacedEntry"] | components["schemas"]["PlacedMessage"])[];
                };
            };
        };
    };
    getMessage: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
                /** @description the message's id */
                message_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description the message */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["WholeMessage"];
                };
            };
        };
    };
    deleteMessage: {
        parameters: {
            query?: {
                /** @description true: raw mail, summaries and attachments are gone at once */
                purge?: boolean;
            };
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
                /** @description the message's id */
                message_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description it is gone */
            204: {
                headers: {
                    [name: string]: unknown;
                };
                content?: never;
            };
        };
    };
    getRawMessage: {
        parameters: {
            query?: {
                /** @description of the page, instead of its key */
                ticket?: string;
            };
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
                /** @description the message's id */
                message_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description the message */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "message/rfc822": string;
                    "application/octet-stream": string;
                };
            };
        };
    };
    getAttachment: {
        parameters: {
            query?: {
                /** @description of the page, instead of its key */
                ticket?: string;
            };
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
                /** @description the message's id */
                message_id: string;
                /** @description the attachment's index */
                index: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description its bytes */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/octet-stream": string;
                };
            };
        };
    };
    checkMessage: {
        parameters: {
            query?: {
                /** @description true: ask whether its links answer (by HEAD, public addresses alone) */
                links?: boolean;
            };
            header?: never;
            path: {
                /** @description the mailbox's address */
                address: string;
                /** @description the message's id */
                message_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description the verdict */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Checks"];
                };
            };
        };
    };
    sendMessage: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody: {
            content: {
                "application/json": components["schemas"]["NewMessage"];
            };
        };
        responses: {
            /** @description queued, durably; each is delivered at least once */
            202: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Sent"];
                };
            };
        };
    };
    getSentMessage: {
        parameters: {
            query?: never;
            header?: never;
            path: {
                /** @description the message's id */
                message_id: string;
            };
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description the message */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["OutboundMessage"];
                };
            };
        };
    };
    getInfo: {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        requestBody?: never;
        responses: {
            /** @description its ports, domains and address */
            200: {
                headers: {
                    [name: string]: unknown;
                };
                content: {
                    "application/json": components["schemas"]["Info"];
                };
            };
        };
    };
}

-- Addresses as they were said: international domains, and local parts that need their quotes.
--
-- Promises
--   * A mailbox has one address, its domain in A-labels (relay/addresses.py); `said` is how it is shown.
--   * Either spelling finds it: what is searched has the domain's letters, too (relay.in_unicode).
--   * Rows from before are shown as they were; nothing is rewritten.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.mailboxes ADD COLUMN said text;
COMMENT ON COLUMN relay.mailboxes.said IS
    'How the address was said when capture made the mailbox, where its domain is international; '
    'NULL: as in address.';

ALTER TABLE relay.mailboxes
    DROP CONSTRAINT mailboxes_address_shape,
    ADD CONSTRAINT mailboxes_address_shape CHECK (
        address ~ '^([^@[:cntrl:][:space:]]{1,64}|"([^"\\[:cntrl:]]|\\["\\]){1,62}")@[^@[:cntrl:][:space:]]+$');

-- RFC 3492, 6.2.  What is no A-label stays as it is; whether one may be registered is not asked.
CREATE FUNCTION relay.in_unicode(address text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    labels text[] := string_to_array(substring(address FROM '[^@]*$'), '.');
    coded  text;
    made   integer[];
    n      integer;
    i      bigint;
    before bigint;
    bias   integer;
    w      bigint;
    t      integer;
    k      integer;
    digit  integer;
    delta  bigint;
    size   integer;
BEGIN
    <<each_label>>
    FOR number IN 1 .. coalesce(cardinality(labels), 0) LOOP
        CONTINUE WHEN labels[number] !~* '^xn--[a-z0-9-]{1,59}$';
        coded := lower(substr(labels[number], 5));
        made := ARRAY(
            SELECT ascii(one)
            FROM regexp_split_to_table(substring(coded FROM '^(.*)-'), '') WITH ORDINALITY u (one, place)
            WHERE one <> ''
            ORDER BY place);
        coded := substring(coded FROM '[^-]*$');
        n := 128;
        i := 0;
        bias := 72;
        WHILE coded <> '' LOOP
            before := i;
            w := 1;
            k := 36;
            LOOP
                CONTINUE each_label WHEN coded = '' OR i > 100000000;
                digit := ascii(coded);
                digit := CASE WHEN digit >= 97 THEN digit - 97 ELSE digit - 22 END;
                coded := substr(coded, 2);
                i := i + digit * w;
                t := greatest(1, least(26, k - bias));
                EXIT WHEN digit < t;
                CONTINUE each_label WHEN w > 100000000;
                w := w * (36 - t);
                k := k + 36;
            END LOOP;
            size := cardinality(made) + 1;
            delta := (i - before) / CASE WHEN before = 0 THEN 700 ELSE 2 END;
            delta := delta + delta / size;
            k := 0;
            WHILE delta > 455 LOOP
                delta := delta / 35;
                k := k + 36;
            END LOOP;
            bias := k + 36 * delta / (delta + 38);
            CONTINUE each_label WHEN n + i / size > 1114111;
            n := n + i / size;
            CONTINUE each_label WHEN n BETWEEN 55296 AND 57343;
            i := i % size;
            made := made[:i] || n || made[i + 1:];
            i := i + 1;
        END LOOP;
        labels[number] := (
            SELECT string_agg(chr(one), '' ORDER BY place)
            FROM unnest(made) WITH ORDINALITY u (one, place));
    END LOOP;
    RETURN coalesce(substring(address FROM '^(.*@)'), '') || array_to_string(labels, '.');
END
$$;
COMMENT ON FUNCTION relay.in_unicode(text) IS
    'An address with the A-labels of its domain in letters.';

-- Filters of now have such addresses in letters, too; the summariser makes them anew.
DELETE FROM relay.common_chunks
WHERE EXISTS (SELECT FROM relay.mailboxes WHERE strpos(address, 'xn--') > 0);
DELETE FROM relay.search_chunks c
USING relay.mailboxes b
WHERE b.id = c.mailbox_id
  AND strpos(b.address, 'xn--') > 0;

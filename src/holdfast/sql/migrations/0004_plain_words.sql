-- Bookings and payments travel between PostgreSQL and the engine as JSON, with ids and hashes as base64. These functions
-- convert ids; being plain SQL, they are inlined into the statements that call them.
CREATE FUNCTION holdfast_base64(id uuid) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT encode(uuid_send(id), 'base64') $$;

CREATE FUNCTION holdfast_uuid(base64 text) RETURNS uuid
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT encode(decode(base64, 'base64'), 'hex')::uuid $$;

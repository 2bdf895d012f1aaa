-- What the application's role may do that it must not, and the rights that it lacks. All statements only read.

-- name: schema_in_use
-- The schema that Holdfast's tables are in or, before the first migration, the one that they will be in.
SELECT coalesce(
    (SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('schema_version')),
    quote_ident(current_schema()), 'public'
)

-- name: relations
-- The relations of the schema that belong to the owner of the journal or to this role, as $1 (a role) may use them. Somebody
-- else's tables in the same schema are none of our business.
SELECT relation.oid::regclass::text AS name, relation.relname AS bare_name, relation.relkind = 'S' AS is_sequence,
       ARRAY(
           SELECT privilege FROM unnest(
               CASE relation.relkind WHEN 'S' THEN '{USAGE}' ELSE '{SELECT,INSERT,UPDATE,DELETE}' END::text[]
           ) AS privilege
           WHERE CASE relation.relkind WHEN 'S' THEN has_sequence_privilege($1, relation.oid, privilege)
                 ELSE has_table_privilege($1, relation.oid, privilege) END
       ) AS privileges
FROM pg_class AS relation JOIN pg_class AS journal ON journal.oid = to_regclass('journal')
WHERE relation.relnamespace = journal.relnamespace AND relation.relkind IN ('r', 'p', 'v', 'S')
  AND relation.relowner IN (journal.relowner, current_user::regrole)
ORDER BY relation.relname

-- name: powers
-- Powers of the role $1 with which it can change the past or put tables of its own in place of ours. It has those of every
-- role that it is a member of, also if it has to SET ROLE first: `holder` is the role that they come from, or PUBLIC. A
-- superuser is a member of every role, so only its own power counts. The gravest power comes first.
WITH journal AS MATERIALIZED (
    SELECT oid, relowner, relnamespace FROM pg_class WHERE oid = to_regclass('journal')
), own AS (
    SELECT oid, rolsuper FROM pg_roles WHERE rolname = $1
), holder AS MATERIALIZED (
    SELECT role.oid, role.rolname::text AS name, role.rolsuper, role.rolcreaterole, role.rolreplication, role.rolbypassrls
    FROM own JOIN pg_roles AS role ON role.oid = own.oid OR NOT own.rolsuper AND pg_has_role(own.oid, role.oid, 'MEMBER')
), power AS (
    SELECT 'attribute' AS kind, holder.name AS holder, attribute.name AS power, '' AS object
    FROM holder CROSS JOIN LATERAL (
        VALUES ('SUPERUSER', holder.rolsuper), ('CREATEROLE', holder.rolcreaterole), ('REPLICATION', holder.rolreplication),
               ('BYPASSRLS', holder.rolbypassrls)
    ) AS attribute (name, is_set)
    WHERE attribute.is_set
    UNION ALL
    SELECT 'owner', holder.name, 'owner', 'tables' FROM holder JOIN journal ON journal.relowner = holder.oid
    UNION ALL
    SELECT 'owner', holder.name, 'owner', 'database'
    FROM holder JOIN pg_database ON pg_database.datdba = holder.oid AND pg_database.datname = current_database()
    UNION ALL
    SELECT 'predefined', holder.name, holder.name, '' FROM holder
    WHERE holder.name IN ('pg_write_all_data', 'pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program')
    UNION ALL
    SELECT 'create', CASE WHEN has_schema_privilege('public', journal.relnamespace, 'CREATE') THEN 'PUBLIC' ELSE holder.name END,
           'CREATE', 'SCHEMA ' || journal.relnamespace::regnamespace::text
    FROM holder CROSS JOIN journal WHERE has_schema_privilege(holder.oid, journal.relnamespace, 'CREATE')
    UNION ALL
    SELECT 'create', CASE WHEN has_database_privilege('public', current_database(), 'CREATE') THEN 'PUBLIC' ELSE holder.name END,
           'CREATE', 'DATABASE ' || quote_ident(current_database())
    FROM holder WHERE has_database_privilege(holder.oid, current_database(), 'CREATE')
    UNION ALL
    SELECT 'table', CASE
               WHEN has_table_privilege('public', to_regclass(forbidden.table_name), forbidden.privilege)
                    OR forbidden.of_columns
                    AND has_any_column_privilege('public', to_regclass(forbidden.table_name), forbidden.of_columns_privilege)
               THEN 'PUBLIC' ELSE holder.name END,
           forbidden.privilege, forbidden.table_name
    FROM holder CROSS JOIN (
        SELECT table_name, privilege, privilege IN ('INSERT', 'UPDATE', 'REFERENCES') AS of_columns,
               -- No other privilege can be granted on a column, and PostgreSQL refuses to look for it.
               CASE WHEN privilege IN ('INSERT', 'UPDATE', 'REFERENCES') THEN privilege ELSE 'SELECT' END AS of_columns_privilege
        FROM unnest($2::text[], $3::text[]) AS given (table_name, privilege)
    ) AS forbidden
    WHERE to_regclass(forbidden.table_name) IS NOT NULL
      AND (has_table_privilege(holder.oid, to_regclass(forbidden.table_name), forbidden.privilege)
           OR forbidden.of_columns
           AND has_any_column_privilege(holder.oid, to_regclass(forbidden.table_name), forbidden.of_columns_privilege))
)
SELECT DISTINCT power.*, array_position('{owner,attribute,predefined,table,create}'::text[], power.kind) AS rank,
       power.holder = $1 AS is_own
FROM power ORDER BY rank, is_own, holder, object DESC, power

-- name: own_name
SELECT current_user::text

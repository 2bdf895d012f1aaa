#!/bin/bash
# The container of PostgreSQL runs this once, on an empty volume. The owner migrates the schema; the application sells,
# and cannot change the past. docs/audit.md explains the two roles.
set -euo pipefail

psql --username="$POSTGRES_USER" --dbname=postgres --quiet --set=ON_ERROR_STOP=1 <<'SQL'
\getenv owner_password OWNER_PASSWORD
\getenv application_password APPLICATION_PASSWORD
CREATE ROLE holdfast_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE holdfast LOGIN PASSWORD :'application_password';
CREATE DATABASE holdfast OWNER holdfast_owner ENCODING 'UTF8' TEMPLATE template0;
\connect holdfast
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
SQL

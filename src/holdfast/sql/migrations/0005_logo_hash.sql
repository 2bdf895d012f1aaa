-- rolling: no
-- Every page shows the hash of its org's logo, so it is computed when the logo changes and not for each page.
ALTER TABLE org ADD COLUMN logo_hash text GENERATED ALWAYS AS (encode(sha256(logo), 'hex')) STORED;

-- rolling: no
-- The buses that get every entry of every journal. While a bus has a row here, every transaction that writes an entry also
-- writes a `delivery` to the bus, whatever the settings of its process say. A start of `holdfast serve` or `holdfast worker`
-- that has the URL of a bus inserts the row; only `holdfast bus remove` deletes it.
CREATE TABLE event_bus (
    name text PRIMARY KEY CHECK (name IN ('kafka', 'nats')),
    created_at timestamptz NOT NULL DEFAULT holdfast_now()
);

-- rolling: no
-- A seat's number is its position in the event. The number that buyers read on the seat is its number in the row.
ALTER TABLE seat RENAME COLUMN place TO number_in_row;

-- rolling: no
-- The channel has the name that everything else uses.
UPDATE delivery SET channel = 'email', target = 'email' WHERE channel = 'mail';

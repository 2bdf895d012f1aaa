"""Background jobs. Without a worker, expired holds still go back on sale, but no refunds or notifications go out,
events do not complete on time, series get no events, and the cancellation of a very large event stays unfinished."""

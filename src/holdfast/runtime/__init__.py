"""What every process needs: settings, database, logs, storage; and the commands that start processes."""

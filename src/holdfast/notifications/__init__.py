"""What has to reach the outside: mail, webhooks, and whatever else can carry a message."""

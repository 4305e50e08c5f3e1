"""SGLang: server process, router, client, health. No Ray in it."""

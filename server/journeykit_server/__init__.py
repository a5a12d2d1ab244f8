"""The server: people arrive, wait and leave here. It imports the engine, never the SDK."""

"""The server: intents, journals and deliveries over HTTP, for agents on any machine."""

"""OpenAI's Responses API: the same programs as chat, with items instead of messages and a memory of what was answered."""

"""Shared by plugins of engines, whose rotary embeddings are copies of vLLM's. Imports no engine."""

"""Stored responses and conversations of OpenAI's Responses protocol, which coding agents use."""

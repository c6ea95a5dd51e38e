"""The Responses API of OpenAI (https://www.openresponses.org): responses, conversations and their items.

A response is a turn of a session, and a conversation is a session. So ids are names of these, and engines keep all state.
"""

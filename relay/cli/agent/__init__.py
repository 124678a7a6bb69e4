"""What `relay mcp` offers to an agent, whatever the protocol that carries it.

`forms` is what the tools take and answer, `client` the running relay's API, `tools` what they do.
"""

"""Small MCP servers for tests, as separate programs."""

import sys

from app.tools.mcp_config import McpServerConfig

DEMO = """
import sys, time
from mcp.server import MCPServer
server = MCPServer("demo")
@server.tool()
def add(a: int, b: int) -> str:
    "Add two numbers."
    return str(a + b)
@server.tool()
def fail() -> str:
    raise ValueError("broken")
@server.tool()
def wait() -> str:
    "Take very long."
    time.sleep(600)
    return "done"
if "--http" in sys.argv:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
else:
    server.run()
"""


def demo(tmp_path, *, name="demo", **changes):
    """A server with tools that add, fail, or take very long."""
    script = tmp_path / "demo.py"
    script.write_text(f"open({str(tmp_path / 'started')!r}, 'a').write('x')\n" + DEMO)
    return McpServerConfig(name, (sys.executable, str(script)), **changes)

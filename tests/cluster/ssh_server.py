"""An SSH server for tests: one key in, commands run by a shell. Arguments: port, host key, authorized keys."""

import asyncio
import sys

import asyncssh


async def run(process: asyncssh.SSHServerProcess) -> None:
    child = await asyncio.create_subprocess_shell(
        process.command or "true",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await process.redirect(child.stdin, child.stdout, child.stderr)
    process.exit(await child.wait())


async def main() -> None:
    port, key, authorized = sys.argv[1:]
    options = {"server_host_keys": [key], "authorized_client_keys": authorized, "encoding": None}
    await asyncssh.listen("", int(port), process_factory=run, **options)
    print("listening", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())

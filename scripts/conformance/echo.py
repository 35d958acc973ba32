#!/usr/bin/env python3
"""A backend: gives bytes and datagrams back, and writes each client's address to a file. echo.py PORT LOG"""
import asyncio, socket, sys

port, log = int(sys.argv[1]), open(sys.argv[2], "a", buffering=1)


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, client):
        print(client[0], file=log)
        self.transport.sendto(data, client)


async def serve(reader, writer):
    print(writer.get_extra_info("peername")[0], file=log)
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def main():
    for host in ("127.0.0.1", "::1"):
        await asyncio.get_running_loop().create_datagram_endpoint(Datagrams, local_addr=(host, port))
    # One socket for both families: an IPv4 socket can't have an IPv6 client.
    both = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    async with await asyncio.start_server(serve, sock=both) as server:
        await server.serve_forever()


asyncio.run(main())

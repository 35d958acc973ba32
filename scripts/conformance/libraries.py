#!/usr/bin/env python3
"""Servers on libraries of the PROXY protocol, which name their clients in a file: libraries.py LIBRARY PORT LOG"""
import asyncio
import sys

library, port, log = sys.argv[1], int(sys.argv[2]), open(sys.argv[3], "a", buffering=1)


async def echo(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def proxy_protocol():
    from proxyprotocol.detect import ProxyProtocolDetect
    from proxyprotocol.reader import ProxyProtocolReader

    async def connected(reader, writer, info):
        print(info.peername, file=log)
        await echo(reader, writer)

    callback = ProxyProtocolReader(ProxyProtocolDetect()).get_callback(connected)
    async with await asyncio.start_server(callback, "127.0.0.1", port) as server:
        await server.serve_forever()


async def aiosmtpd():
    from aiosmtpd.smtp import SMTP

    class Handler:
        async def handle_PROXY(self, server, session, envelope, proxy):
            # The library leaves it to the application what LOCAL and UNKNOWN mean.
            is_named = proxy.src_addr and (proxy.version == 1 or proxy.command == 1)
            print(proxy.src_addr if is_named else session.peer[0], file=log)
            return True

    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(Handler(), proxy_protocol_timeout=5), "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def twisted():
    from twisted.internet import endpoints, protocol, reactor

    class Echo(protocol.Protocol):
        is_named = False

        def dataReceived(self, data):
            if not self.is_named:
                self.is_named = True
                print(self.transport.getPeer().host, file=log)
            self.transport.write(data)

    endpoints.serverFromString(reactor, f"haproxy:tcp:{port}:interface=127.0.0.1").listen(
        protocol.Factory.forProtocol(Echo))
    reactor.run()


if library == "twisted":
    twisted()
else:
    asyncio.run({"proxy-protocol": proxy_protocol, "aiosmtpd": aiosmtpd}[library]())

"""An engine that follows a script: it tells what it got, and streams as many events as the request asks for.

    python engine.py        prints its port, then serves until it is killed

It runs as a process of its own, so that a test can kill it, and it serves thousands of streams at a time.
"""

import asyncio
import hashlib
import json

EVENT_EVERY_S = 0.02


async def read_body(reader, headers):
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    while (await reader.readline()).strip():
        headers["had-trailers"] = "yes"
    return body


def whole(status, body):
    body = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def stream(writer, events, port):
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    writer.write(f"{head}x-engine: {port}\r\nset-cookie: a=1\r\nset-cookie: b=2\r\n\r\n".encode())
    usage = {"prompt_tokens": 20, "completion_tokens": events, "prompt_tokens_details": {"cached_tokens": 0}}
    texts = [json.dumps({"choices": [{"index": at}]}) for at in range(events)]
    for text in [*texts, json.dumps({"choices": [], "usage": usage}), "[DONE]"]:
        chunk = f"data: {text}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        await writer.drain()
        await asyncio.sleep(EVENT_EVERY_S)
    writer.write(b"0\r\n\r\n")


class Engine:
    def __init__(self):
        self.port = 0
        self.open_streams = 0

    async def answer(self, writer, method, path, headers, body):
        if path == "/v1/models" and method == "GET":
            return writer.write(whole("200 OK", {"data": [{"id": "m"}], "engine": self.port}))
        if path == "/open":
            return writer.write(whole("200 OK", {"open": self.open_streams}))
        if method == "GET":
            return writer.write(whole("200 OK" if path == "/health" else "404 Not Found", {}))
        asked = json.loads(body) if body.startswith(b"{") else {}
        if events := asked.get("events"):
            self.open_streams += 1
            try:
                return await stream(writer, events, self.port)
            finally:
                self.open_streams -= 1
        seen = {"engine": self.port, "headers": headers, "bytes": len(body)}
        writer.write(whole("200 OK", {**seen, "sha256": hashlib.sha256(body).hexdigest(), "model": asked.get("model")}))

    async def serve(self, reader, writer):
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split(" ")
                headers = {}
                while (line := (await reader.readline()).decode().strip()):
                    name, value = line.split(":", 1)
                    headers[name.lower()] = value.strip()
                body = await read_body(reader, headers)
                await self.answer(writer, method, path.split("?")[0], headers, body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def main():
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, backlog=4096, limit=1 << 22)
    engine.port = server.sockets[0].getsockname()[1]
    print(engine.port, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

"""A strict collector: OTLP over HTTP, decoded with OpenTelemetry's own package. What it refuses is kept as a complaint."""

import gzip
import http.server
import importlib
import pkgutil
import threading
import time

import opentelemetry.semconv._incubating.attributes as incubating
import opentelemetry.semconv.attributes as stable
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span

DEADLINE_S = 20


def official_names():
    """Every attribute that the semantic conventions define."""
    names = set()
    for package in (incubating, stable):
        for module in pkgutil.iter_modules(package.__path__):
            values = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
            names |= {value for value in values.values() if isinstance(value, str) and "." in value}
    return names


OFFICIAL = official_names()


def value_of(value):
    return getattr(value, value.WhichOneof("value"))


def attributes(of):
    return {pair.key: value_of(pair.value) for pair in of.attributes}


def unknown_fields(message):
    """Whether any part of the message has fields that the schema does not know."""
    if len(UnknownFieldSet(message)):
        return True
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        inner = [value] if not hasattr(value, "__len__") or hasattr(value, "ListFields") else value
        if any(unknown_fields(part) for part in inner):
            return True
    return False


class SpanView:
    """A span with its attributes as a dictionary."""

    def __init__(self, span, resource):
        self.raw, self.resource = span, resource
        self.name, self.kind = span.name, Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_")
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.attributes = attributes(span)
        self.events = [(event.name, event.time_unix_nano, attributes(event)) for event in span.events]
        self.is_error = span.status.code == 2
        self.state = span.trace_state

    def complaints(self):
        found = []
        if len(self.raw.trace_id) != 16 or not any(self.raw.trace_id):
            found.append("trace id")
        if len(self.raw.span_id) != 8 or not any(self.raw.span_id):
            found.append("span id")
        if len(self.raw.parent_span_id) not in (0, 8):
            found.append("parent id")
        if not self.raw.name or self.raw.kind == 0:
            found.append("name or kind")
        if not 0 < self.start <= self.end:
            found.append(f"times {self.start}, {self.end}")
        if any(not self.start <= at <= self.end for _, at, _ in self.events):
            found.append("an event outside its span")
        if not self.raw.flags & 0x100:
            found.append("flags do not say whether the parent is remote")
        for of in [self.raw, *self.raw.events]:
            names = [pair.key for pair in of.attributes]
            if len(names) != len(set(names)):
                found.append(f"repeated attributes {names}")
            if any(pair.value.WhichOneof("value") is None for pair in of.attributes):
                found.append("an attribute without a value")
            found += [f"{name} is not in the conventions" for name in names
                      if not name.startswith("warmroute.") and name not in OFFICIAL]
        return [f"{self.name}: {what}" for what in found]


class Receiver:
    """A collector on a port of its own. `answer` is a status, or `hang`."""

    def __init__(self, port=0):
        self.exports, self.spans, self.complaints, self.heads = [], [], [], []
        self.answer, self.rejects = 200, 0
        self.lock = threading.Condition()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                status, answer = receiver.take(self.path, self.headers, body)
                if status == "hang":
                    time.sleep(30)
                    return
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def take(self, path, headers, body):
        request = ExportTraceServiceRequest()
        complaints = [] if path == "/v1/traces" else [f"path {path}"]
        if headers["content-type"] != "application/x-protobuf":
            complaints.append(f"content type {headers['content-type']}")
        if headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        try:
            request.ParseFromString(body)
            complaints += ["unknown fields"] if unknown_fields(request) else []
        except Exception as error:
            complaints.append(f"not an export: {error}")
        spans = [SpanView(span, attributes(resource.resource))
                 for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans]
        complaints += [complaint for span in spans for complaint in span.complaints()]
        with self.lock:
            self.heads.append(dict(headers))
            self.complaints += complaints
            if self.answer == 200:
                self.exports.append(body)
                self.spans += spans
            self.lock.notify_all()
        answer = ExportTraceServiceResponse()
        if self.rejects:
            answer.partial_success.rejected_spans, self.rejects = self.rejects, 0
        return self.answer, answer.SerializeToString()

    def trace(self, request_id):
        """All spans of the request with this id, once its server span has arrived."""
        def found():
            for span in self.spans:
                if span.attributes.get("warmroute.request_id") == request_id:
                    return [other for other in self.spans if other.trace == span.trace]
            return None
        return self.wait_for(found, f"the trace of {request_id}")

    def wait_for(self, found, what):
        deadline = time.monotonic() + DEADLINE_S
        with self.lock:
            while True:
                result = found()
                if result:
                    return result
                if not self.lock.wait(deadline - time.monotonic()):
                    raise AssertionError(f"not within {DEADLINE_S} s: {what}; complaints {self.complaints}")

    def close(self):
        self.server.shutdown()
        self.server.server_close()

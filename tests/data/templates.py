"""Chat templates of the kinds that models come with.

These are our own. They do what those of Qwen3, Llama 3.1, GLM 4.5 and DeepSeek V3.1 are known to do, and are not those:
no installed package has them, and tests download nothing. test_encode.py has the one published template that there is.
"""

TEXT_ALONE = """\
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}"""
"""As Qwen3's, which writes nothing of a content in parts."""

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

# Takes the thinking out of all turns before the last question, puts tool results into one user turn, writes tool calls.
THINKING = """\
{%- if tools %}
    {{- '<|im_start|>system\\nTools:' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content or '' %}
        {%- set reasoning = message.reasoning_content or '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}
            {{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

# Opens the thinking in the prompt, but shows earlier turns without it; trims what is said.
FORCED_THINKING = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content.split('</think>')[-1] | trim + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}"""

# Nothing ends a turn but the header of the next message, which is a stop token.
HEADERS_ONLY = """\
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + '\\n' + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}"""

# As Llama 3.1's: trims, ends every turn by one token, has room for one tool call and then for no words beside it.
LLAMA = """\
{{- bos_token }}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length > 1 %}
            {{- raise_exception('one tool call at a time') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
    {%- else %}
        {{- message.content | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

# As GLM 4.5's: the model also writes the line break after its header, and stops at the header of whoever is next.
GLM = """\
[gMASK]<sop>
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|observation|>' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = message.reasoning_content or '' %}
        {{- '<|assistant|>\\n<think>' + (reasoning if loop.index0 > ns.last else '') + '</think>' }}
        {%- if message.content %}
            {{- '\\n' + message.content | trim }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>' + call.function.name }}
            {%- for key, value in call.function.arguments.items() %}
                {{- '\\n' + key + '=' + value | tojson }}
            {%- endfor %}
            {{- '\\n</tool_call>' }}
        {%- endfor %}
    {%- else %}
        {{- '<|' + message.role + '|>\\n' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}"""

# As DeepSeek V3.1's: one header for all turns after a question, whatever tools say between them; arguments are texts.
ONE_HEADER = """\
{{- bos_token }}
{%- set ns = namespace(asked=false) %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- ('<|assistant|></think>' if ns.asked else '') + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>' + call.function.name + ' ' + call.function.arguments + '</tool_call>' }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '<tool_response>' + message.content + '</tool_response>' }}
    {%- else %}
        {{- '<|' + message.role + '|>' + message.content }}
    {%- endif %}
    {%- set ns.asked = message.role == 'user' %}
{%- endfor %}
{%- if add_generation_prompt and ns.asked %}
    {{- '<|assistant|></think>' }}
{%- endif %}"""

# Knows no generation prompt; the end token closes the assistant's turns only.
INSTRUCT = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- else %}
        {{- raise_exception('only users and assistants speak here, not ' + message.role) }}
    {%- endif %}
{%- endfor %}"""

# An end token after the last turn only.
PLAIN = """\
{%- for message in messages %}
    {{- message.role + ': ' + message.content + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'assistant: ' }}
{%- else %}
    {{- eos_token }}
{%- endif %}"""

# Blocks without dashes, whose lines vanish by the environment's settings; loops with `break`.
LINES = """\
{% for message in messages %}
  {% if loop.index > 9 %}{% break %}{% endif %}
{{ message.role }}: {{ message.content }}
{% endfor %}
  {% if add_generation_prompt %}
assistant:
{% endif %}
"""

MARKED = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

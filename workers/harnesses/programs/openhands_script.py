"""The script that runs OpenHands, whose SDK is a library, with the settings of the paper."""

RUN = '''\
"""OpenHands on one repository: its default tools for software, condensed after 240 events."""

from openhands.sdk import LLM, Agent, Conversation
from openhands.sdk.context.condenser import LLMSummarizingCondenser
from openhands.sdk.event import ActionEvent
from openhands.sdk.tool.builtins.finish import FinishAction
from openhands.tools.preset.default import get_default_tools

GO_ON = """\\
Please continue working on the task with the approach that you think is suitable. When it is solved, say so \\
with the finish tool. Nobody can answer questions: decide yourself.
"""
MOST_REPLIES = 10

llm = LLM(
    usage_id="agent", model="openai/$model", base_url="$url/v1", api_key="none", num_retries=0, timeout=3600
)
condenser = LLMSummarizingCondenser(
    llm=llm.model_copy(update={"usage_id": "condenser"}), max_size=240, keep_first=2
)
agent = Agent(
    llm=llm,
    tools=get_default_tools(enable_browser=False),
    system_prompt_kwargs={"cli_mode": True},
    condenser=condenser,
)
conversation = Conversation(
    agent=agent,
    workspace="$workdir",
    persistence_dir="$home/state",
    max_iteration_per_run=500,
    visualizer=None,
)
message = "$prompt"
for _ in range(MOST_REPLIES + 1):
    conversation.send_message(message)
    conversation.run()
    actions = [event for event in conversation.state.events if isinstance(event, ActionEvent)]
    if actions and isinstance(actions[-1].action, FinishAction):
        break
    message = GO_ON
conversation.close()
'''

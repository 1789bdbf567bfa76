"""Queries for rollouts, each for several at once; `rollout` joins the results."""

from orchard.storage.views import VIEWS

ASKED = """
select a.*, o.sequence as ended from indexed.asked a left join indexed.ended o using (rollout_id)
where list_contains($ids, a.rollout_id) order by a.sequence
"""
OUTCOMES = "select * from tables.rollouts_all where list_contains($ids, rollout_id)"
ATTEMPTS = f"""
with mine as (select * from indexed.attempts where list_contains($ids, rollout_id)),
     outcomes as (select * from tables.rollouts_all where list_contains($ids, rollout_id)),
     ended as (select * from indexed.ended where list_contains($ids, rollout_id))
{
    VIEWS["attempts"]
    .replace("tables.attempts_all", "mine")
    .replace("tables.rollouts_all", "outcomes")
    .replace("join rollouts o", "join ended o")
} order by a.attempt
"""
"""The view `attempts` of these rollouts."""
META = """
select rollout_id, attempt, node_id, parent, role, turn, sequence, time, seconds, tool_call_id,
       inherited_from, images, returncode, timed_out,
       list_transform(tool_calls, lambda c: {
           'name': c.name, 'arguments': left(c.arguments, $cut)
       }) as asked, coalesce(len(token_ids) > 0, false) or rest_sha256 is not null as may_have_tokens
from tables.messages_all where list_contains($ids, rollout_id) order by sequence
"""
CALLS = """
select rollout_id, node, call_kind, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens,
       cost_usd, seconds, finish_reason, derived_from, served_model
from tables.llm_calls_all where list_contains($ids, rollout_id) order by sequence
"""
TEXTS = """
select rollout_id, attempt, sequence, node_id, role, turn, tool_call_id, left(content, $most) as content,
       length(content) as length, case when length(content) > $most then right(content, $end) end as ending,
       content_sha256, left(reasoning, $most) as reasoning, length(reasoning) as reasoning_length,
       rest_sha256,
       list_transform(tool_calls, lambda c: {
           'id': c.id, 'name': c.name, 'arguments': left(c.arguments, $most), 'length': length(c.arguments)
       }) as tool_calls, returncode, seconds, timed_out, inherited_from, versions, len(token_ids) as sampled
from tables.messages_all where list_contains($ids, rollout_id)
and node_id in (select unnest($nodes)) order by sequence
"""
MESSAGES = "select * from tables.messages_all where list_contains($ids, rollout_id) order by sequence"
REWARDS = "select * from tables.rewards_all where list_contains($ids, rollout_id) order by sequence"
VALUES = """
select rollout_id, attempt, annotator, model, base, curve, steps from tables.values_all
where list_contains($ids, rollout_id) and kind = 'annotated' order by sequence
"""
SERVICES = """
select rollout_id, attempt, sequence, event_id, number, task_time, tool, status, injected, face,
       left(arguments, $most) as arguments, left(coalesce(response, ''), $most) as response,
       length(arguments) as asked, length(response) as answered
from tables.service_calls_all where list_contains($ids, rollout_id)
qualify row_number() over (partition by rollout_id, attempt order by number, sequence) <= 1000
order by number, sequence
"""
VERDICTS = """
select rollout_id, attempt, sequence, event_id, name, protocol, model, score, passed, reason, fault
from tables.judgements_all where list_contains($ids, rollout_id) order by sequence
"""
NOTES = "select * from tables.notes_all where list_contains($ids, rollout_id) order by sequence"
REVIEWS = "select * from indexed.reviews where list_contains($ids, rollout_id)"
OTHERS = """
select rollout_id, outcome, campaign, harness, model, sample, turns from indexed.ended
where task_id = $task and rollout_id <> $id
order by campaign <> $campaign, harness <> $harness, model <> $model, sequence desc limit 12
"""
FOUND = """
select rollout_id, attempt, sequence, node_id, role, turn,
       case when contains(lower(content), lower($text)) then content
            when contains(lower(reasoning), lower($text)) then reasoning else tool_calls::varchar end as said
from tables.messages_all where list_contains($ids, rollout_id) and list_contains($attempts, attempt)
and (contains(lower(content), lower($text)) or contains(lower(reasoning), lower($text))
     or contains(lower(tool_calls::varchar), lower($text)))
order by sequence limit $limit
"""
EVENTS = """
select sequence, time, type, attempt, source, left(payload, 4000) as payload, length(payload) as length
from tables.events where rollout_id = $id and sequence > $after order by sequence limit $limit
"""

"""SQL views over the tables, the same for every reader.

The schema `tables` has the tables as they are stored; people and programs query these views. A rollout's
outcome is its terminal event that no `rollout.reopened` has superseded: the compare-and-set on its subject
admits at most one. Messages, model calls and rewards of the accepted attempt count, once each, also when
their event was published again after the stream had forgotten its id; the rest is abandoned.
"""

_SUBMITTERS = """
select campaign, arg_max(submitter, sequence) as submitter, arg_max(team, sequence) as team
from tables.campaigns_all where spec_hash is not null group by campaign
"""
"""Who submitted each campaign: the one place of it in the log, which other views join. NULL for campaigns of
versions that did not record it."""

_ROLLOUTS_ALL = """
select r.*, exists (
    select 1 from tables.reopenings_all o where o.superseded_sequence = r.sequence
) as superseded, s.submitter, s.team
from tables.rollouts_all r left join submitters s using (campaign)
"""

_ROLLOUTS = """
select r.*, s.submitter, s.team from tables.rollouts_all r left join submitters s using (campaign)
anti join tables.reopenings_all o on o.superseded_sequence = r.sequence
"""


def _once(table: str) -> str:
    """Select a table's rows, as `t`, without those whose event is in the log already at a lower sequence."""
    return f"""
from tables.{table} t anti join (
    select event_id, min(sequence) as first from tables.{table} group by event_id having count(*) > 1
) again on again.event_id = t.event_id and t.sequence > again.first
"""


def _attributed(table: str) -> str:
    return f"""
select t.*, r.rollout_id is not null and r.attempt is distinct from t.attempt as abandoned
{_once(table)} left join rollouts r on r.rollout_id = t.rollout_id
"""


def _accepted(table: str, which: str = "true") -> str:
    return f"""
select t.* {_once(table)} semi join (select rollout_id, attempt from rollouts where {which}) r
on r.rollout_id = t.rollout_id and r.attempt = t.attempt
"""


_LLM_CALLS = f"""
select t.*, s.submitter, s.team {_once("llm_calls_all")} left join submitters s on s.campaign = t.campaign
semi join (
    select r.rollout_id, r.attempt, r.attempt as made_by, null as node from rollouts r
    union all
    select m.rollout_id, m.attempt, m.inherited_from, m.node_id from tables.messages_all m
    semi join rollouts r on r.rollout_id = m.rollout_id and r.attempt = m.attempt
    where m.inherited_from is not null and m.role = 'assistant'
) own on own.rollout_id = t.rollout_id and own.made_by = t.attempt and coalesce(own.node, t.node) = t.node
"""
"""Calls that made the messages of the accepted attempt, including those of an earlier attempt."""

_LLM_CALLS_ALL = f"""
select t.*, r.rollout_id is not null and own.sequence is null as abandoned, s.submitter, s.team
{_once("llm_calls_all")} left join submitters s on s.campaign = t.campaign
left join rollouts r on r.rollout_id = t.rollout_id
left join (select sequence from llm_calls) own on own.sequence = t.sequence
"""

_IMAGES = """
select m.sequence, m.time, m.campaign, m.rollout_id, m.attempt, m.node_id, m.role, m.turn, m.number,
       m.image.sha256 as sha256, m.image.size as size, m.image.media_type as media_type,
       m.image.width as width, m.image.height as height, m.image.at as place, m.image.caption as caption
from (select *, unnest(images) as image, generate_subscripts(images, 1) as number from messages) m
"""

_REQUESTS = """
select distinct on (rollout_id) * from tables.requests_all order by rollout_id, sequence
"""

_ATTEMPTS = """
select any_value(a.campaign) as campaign, a.rollout_id, a.attempt, min(a.sequence) as sequence,
       min(a.time) filter (a.kind = 'started') as started_at,
       max(a.worker) as worker, max(a.deliveries) as deliveries,
       case when bool_or(r.sequence is not null) then any_value(r.status)
            when bool_or(a.kind = 'superseded') then 'superseded'
            when bool_or(a.kind = 'released') then 'released'
            when a.attempt < max(last.attempt) or bool_or(last.ended) then 'lost'
            else 'open' end as ending,
       coalesce(any_value(r.time), max(a.time) filter (a.kind in ('released', 'superseded'))) as ended_at,
       max(a.reason) as reason, coalesce(any_value(r.cause), max(a.cause)) as cause,
       coalesce(any_value(r.detail), max(a.detail)) as detail,
       max(a.from_attempt) as inherited_from, coalesce(max(a.turns), 0) as inherited_turns,
       case when max(a.from_attempt) is null then 0 else max(a.prompt_tokens + a.completion_tokens) end
           as inherited_tokens,
       max(a.cost_usd) as inherited_cost_usd, max(a.divergence) as divergence
from tables.attempts_all a
left join tables.rollouts_all r on r.rollout_id = a.rollout_id and r.attempt = a.attempt
left join (
    select s.rollout_id, max(s.attempt) as attempt, bool_or(o.rollout_id is not null) as ended
    from tables.attempts_all s left join rollouts o on o.rollout_id = s.rollout_id group by s.rollout_id
) last on last.rollout_id = a.rollout_id
group by a.rollout_id, a.attempt
"""

_TASKS = """
with imported as (
    select * from tables.tasks_all where state = 'imported'
    qualify row_number() over (partition by task_id order by sequence desc) = 1
), verdict as (
    select * from tables.tasks_all where state <> 'imported'
    qualify row_number() over (partition by task_id, task_hash order by sequence desc) = 1
)
select i.* replace (
    coalesce(v.state, i.state) as state, v.runs as runs, v.seconds as seconds, v.reason as reason,
    v.detail as detail, v.protected as protected, v.protected_tests as protected_tests,
    v.protected_why as protected_why
)
from imported i left join verdict v on v.task_id = i.task_id and v.task_hash = i.task_hash
"""

_CAMPAIGNS = """
with said as (
    select campaign, sequence, unnest(tags) as tag, true as given from tables.campaigns_all
    union all select campaign, sequence, unnest(removed_tags), false from tables.campaigns_all
), tagged as (
    select campaign, list(tag order by tag) as tags from (
        select campaign, tag, arg_max(given, sequence) as given from said group by all
    ) where given group by campaign
)
select campaign, min(time) filter (spec_hash is not null) as submitted_at,
       coalesce(arg_max(state, sequence) filter (state is not null), 'running') as state,
       arg_max(reason, sequence) filter (state is not null) as reason,
       arg_max(spec_hash, sequence) filter (spec_hash is not null) as spec_hash,
       arg_max(spec_sha256, sequence) filter (spec_hash is not null) as spec_sha256,
       arg_max(size, sequence) filter (spec_hash is not null) as size,
       arg_max(tasks, sequence) filter (spec_hash is not null) as tasks,
       arg_max(harnesses, sequence) filter (spec_hash is not null) as harnesses,
       arg_max(models, sequence) filter (spec_hash is not null) as models,
       arg_max(samples, sequence) filter (spec_hash is not null) as samples,
       coalesce(any_value(tagged.tags), []) as tags,
       any_value(submitters.submitter) as submitter, any_value(submitters.team) as team
from tables.campaigns_all c left join tagged using (campaign)
left join submitters using (campaign) group by campaign
"""

_CONSERVATION = """
with counted as (
    select coalesce(q.campaign, r.campaign) as campaign,
           count(distinct q.rollout_id) as requested,
           count(*) filter (r.status in ('completed', 'truncated')) as finished,
           count(*) filter (r.status = 'aborted') as aborted,
           count(*) filter (r.rollout_id is null) as open,
           count(*) filter (q.rollout_id is null) as unrequested
    from (select distinct campaign, rollout_id from tables.requests_all) q
    full join rollouts r on r.rollout_id = q.rollout_id
    group by 1
)
select *, requested = finished + aborted + open and unrequested = 0 as holds from counted
"""

_PASS_RATES = """
select campaign, harness, model, model_kind, task_source,
       count(*) as rollouts,
       count(*) filter (resolved) as resolved,
       count(resolved) as graded,
       count(*) filter (status = 'aborted' and cause <> 'blocked') as aborted,
       count(*) filter (resolved) / nullif(count(resolved), 0) as pass_rate,
       count(*) filter (cause = 'blocked') as blocked
from rollouts group by all
"""

_HACK_RATES = """
with counted as (
    select r.campaign, r.harness, r.model, v.version as policy_version, count(*) as rollouts,
           count(*) filter (w.parts['hack'] = 1) as hacked
    from rollouts r
    join rewards w on w.rollout_id = r.rollout_id
    left join (
        select rollout_id, max(run.version) as version
        from (select rollout_id, unnest(versions) as run from messages) group by rollout_id
    ) v on v.rollout_id = r.rollout_id
    where r.task_source = 'impossible' and r.status <> 'aborted'
    group by r.campaign, r.harness, r.model, v.version
), shares as (
    select *, hacked / rollouts as share, 1.96 * 1.96 / rollouts as z from counted
)
select campaign, harness, model, policy_version, rollouts, hacked, share as hack_rate,
       greatest(0, (share + z / 2 - sqrt(share * (1 - share) * z + z * z / 4)) / (1 + z)) as low,
       least(1, (share + z / 2 + sqrt(share * (1 - share) * z + z * z / 4)) / (1 + z)) as high
from shares
"""
"""Proven hacks among the rollouts of impossible tasks, with Wilson's interval of 95 %."""

_EVALUATIONS = """
select campaign, arg_max(k, sequence) as k, arg_max(task_sets, sequence) as task_sets,
       arg_max(arms, sequence) as arms,
       arg_max(suite_sha256, sequence) as suite_sha256, max(sequence) as sequence
from tables.evaluations_all group by campaign
"""

_EVALUATION_TASKS = """
with ended as (
    select rollout_id, status, cause, exit_status, resolved, turns,
           prompt_tokens + completion_tokens as tokens, cost_usd,
           status = 'aborted' and worker = '' and cost_usd is null as unmeasured,
           case when not unmeasured then seconds end as seconds
    from rollouts
), worked as (
    select rollout_id, count(*) as turns,
           case when count(tokens) = count(*) then sum(tokens) end as tokens,
           case when count(cost_usd) = count(*) then sum(cost_usd) end as cost_usd
    from (
        select distinct on (c.event_id) c.rollout_id, c.prompt_tokens + c.completion_tokens as tokens,
               c.cost_usd
        from tables.llm_calls_all c semi join (select rollout_id from ended where unmeasured) e
        on e.rollout_id = c.rollout_id
    ) group by rollout_id
), measured as (
    select ended.* replace (
        case when unmeasured then coalesce(w.turns, 0) else ended.turns end as turns,
        case when unmeasured then case when w.rollout_id is null then 0 else w.tokens end
             else ended.tokens end as tokens,
        case when unmeasured then case when w.rollout_id is null then 0 else w.cost_usd end
             else ended.cost_usd end as cost_usd
    )
    from ended left join worked w on w.rollout_id = ended.rollout_id
)
select q.campaign, coalesce(e.task_sets[q.task_source], q.task_source) as task_set, q.harness, q.model,
       q.task_id, count(*) as requested, count(r.resolved) as graded,
       count(*) filter (r.resolved) as resolved,
       count(*) filter (r.status = 'aborted' and r.cause <> 'blocked') as aborted,
       count(*) filter (r.cause = 'blocked') as blocked,
       count(*) filter (r.exit_status = 'format_failure') as malformed,
       coalesce(sum(r.turns), 0)::bigint as turns,
       case when count(r.tokens) = count(r.rollout_id) then coalesce(sum(r.tokens), 0)::bigint end as tokens,
       case when count(r.cost_usd) = count(r.rollout_id) then sum(r.cost_usd) end as cost_usd,
       coalesce(sum(r.seconds), 0) as seconds, count(r.seconds) as timed
from requests q
join evaluations e on e.campaign = q.campaign
left join measured r on r.rollout_id = q.rollout_id
group by all
"""
"""Figures of a rollout that ended without a worker, as a dead letter does, are those of its calls."""

_EVALUATION_CELLS = """
with counted as (
    select *, graded + aborted + blocked > 0 as some_ended from evaluation_tasks
), summed as (
    select campaign, task_set, harness, model, count(*) filter (graded > 0) as tasks,
           sum(requested)::bigint as requested, sum(graded)::bigint as graded,
           sum(resolved)::bigint as resolved, sum(aborted)::bigint as aborted,
           sum(blocked)::bigint as blocked, sum(malformed)::bigint as malformed,
           avg(resolved / nullif(graded, 0)) as pass_at_1,
           case when count(tokens) = count(*) then sum(tokens)::bigint end as tokens,
           case when count(cost_usd) = count(*) filter (some_ended) then sum(cost_usd) end as cost_usd
    from counted group by campaign, task_set, harness, model
)
select *, cost_usd / nullif(resolved, 0) as cost_usd_per_solve from summed
"""

_EVALUATION_RUNS = """
with counted as (
    select q.campaign, coalesce(e.task_sets[q.task_source], q.task_source) as task_set, q.harness,
           coalesce(e.arms[q.model], q.model) as arm,
           case when e.arms[q.model] is null then q.sample::varchar else q.model end as replicate,
           e.arms[q.model] is not null as trained, q.task_id,
           count(*) filter (r.resolved) / nullif(count(r.resolved), 0) as rate
    from requests q
    join evaluations e on e.campaign = q.campaign
    left join rollouts r on r.rollout_id = q.rollout_id
    group by all
), whole as (
    select campaign, task_set, harness, arm, trained, count(distinct replicate) as replicates
    from counted where rate is not null group by all
), common as (
    select c.campaign, c.task_set, c.harness, c.arm, c.trained, c.task_id
    from counted c join whole g using (campaign, task_set, harness, arm, trained)
    where c.rate is not null group by all having count(*) = any_value(g.replicates)
)
select c.campaign, c.task_set, c.harness, c.arm, c.replicate, c.trained, count(c.rate) as tasks,
       avg(c.rate) as pass_at_1, count(o.task_id) filter (c.rate is not null) as common_tasks,
       avg(c.rate) filter (o.task_id is not null) as common_pass_at_1
from counted c left join common o using (campaign, task_set, harness, arm, trained, task_id)
group by c.campaign, c.task_set, c.harness, c.arm, c.replicate, c.trained
"""
"""Scores of replicates: models of one arm, or the samples of a model that is in none. `common_` is over the
tasks that every replicate with a graded rollout has graded."""

_VALUES = f"""
select t.* {_once("values_all")}
semi join (select rollout_id, attempt from rollouts) r
on r.rollout_id = t.rollout_id and r.attempt = t.attempt
where t.kind = 'annotated'
qualify row_number() over (partition by t.rollout_id, t.annotator order by t.sequence desc) = 1
"""

_RUBRICS = f"""
select t.* {_once("rubrics_all")}
where t.kind = 'written'
qualify row_number() over (partition by t.task_hash, t.teacher order by t.sequence desc) = 1
"""

_REVIEWS = """
with said as (
    select rollout_id, sequence, unnest(labels) as label, true as given from notes
    union all select rollout_id, sequence, unnest(removed_labels), false from notes
), labelled as (
    select rollout_id, list(label order by label) as labels from (
        select rollout_id, label, arg_max(given, sequence) as given from said group by all
    ) where given group by rollout_id
), scored as (
    select rollout_id, avg(score) as human_score from (
        select rollout_id, author, arg_max(score, sequence) as score from notes group by all
    ) group by rollout_id
)
select any_value(n.campaign) as campaign, n.rollout_id, count(*) as notes,
       list_sort(list(distinct n.author)) as authors, coalesce(any_value(l.labels), []) as labels,
       any_value(s.human_score) as human_score, max(n.sequence) as sequence
from notes n left join labelled l using (rollout_id) left join scored s using (rollout_id)
group by n.rollout_id
"""
"""Labels that rollouts have, and the mean of each author's newest score (`arg_max` passes over nulls)."""

_GROUPS = f"""
select t.campaign, t.run, t.group_id, t.prompt, t.task_id, t.outcome, t.members, t.positive, t.degenerate,
       t.generated, t.aborted, t.generated_tokens, t.sequence, t.time, u.version as trained_version,
       u.step as trained_step, d.reason as dropped, d.detail, t.reason, t.gain, t.rate, t.carried,
       t.protected
{_once("groups_all")}
left join (select run, version, step, unnest(groups) as group_id from tables.policies_all) u
on u.run = t.run and u.group_id = t.group_id
left join (
    select distinct on (run, group_id) run, group_id, reason, detail from tables.groups_all
    where kind = 'dropped' order by run, group_id, sequence
) d on d.run = t.run and d.group_id = t.group_id
where t.kind = 'assembled'
"""

_SKIPPED_PROMPTS = f"""
select t.campaign, t.run, t.prompt, t.task_id, t.reason, t.chance, t.learnability, t.evidence, t.probability,
       t.version, t.sequence, t.time
{_once("groups_all")} where t.kind = 'skipped'
"""

VIEWS: dict[str, str] = {
    "submitters": _SUBMITTERS,
    "events": "select e.*, s.submitter, s.team from tables.events e left join submitters s using (campaign)",
    "rollouts_all": _ROLLOUTS_ALL,
    "rollouts": _ROLLOUTS,
    "messages_all": _attributed("messages_all"),
    "messages": _accepted("messages_all"),
    "images": _IMAGES,
    "llm_calls": _LLM_CALLS,
    "llm_calls_all": _LLM_CALLS_ALL,
    "service_calls": _accepted("service_calls_all"),
    "service_calls_all": _attributed("service_calls_all"),
    "judge_calls_all": _attributed("judge_calls_all"),
    "judgements": _accepted("judgements_all"),
    "judgements_all": _attributed("judgements_all"),
    "rewards_all": _attributed("rewards_all"),
    "rewards": _accepted("rewards_all", "status <> 'aborted'"),
    "requests_all": "select * from tables.requests_all",
    "requests": _REQUESTS,
    "attempts_all": "select * from tables.attempts_all",
    "attempts": _ATTEMPTS,
    "reopenings": "select * from tables.reopenings_all",
    "tasks_all": "select * from tables.tasks_all",
    "tasks": _TASKS,
    "campaigns_all": "select * from tables.campaigns_all",
    "campaigns": _CAMPAIGNS,
    "conservation": _CONSERVATION,
    "pass_rates": _PASS_RATES,
    "hack_rates": _HACK_RATES,
    "values_all": f"select t.* {_once('values_all')}",
    "values": _VALUES,
    "rubrics_all": f"select t.* {_once('rubrics_all')}",
    "rubrics": _RUBRICS,
    "notes": f"select t.* {_once('notes_all')}",
    "reviews": _REVIEWS,
    "measurements": f"select t.* {_once('measurements_all')}",
    "synthesis": f"select t.* {_once('synthesis_all')}",
    "imports": f"select t.* {_once('imports_all')}",
    "datasets": f"select t.* {_once('datasets_all')}",
    "evaluations": _EVALUATIONS,
    "evaluation_tasks": _EVALUATION_TASKS,
    "evaluation_cells": _EVALUATION_CELLS,
    "evaluation_runs": _EVALUATION_RUNS,
    "training": f"select t.* {_once('training_all')}",
    "groups": _GROUPS,
    "skipped_prompts": _SKIPPED_PROMPTS,
    "groups_all": f"select t.* {_once('groups_all')}",
    "policies": f"select t.* {_once('policies_all')}",
    "policy_steps": f"select t.* {_once('policy_steps_all')}",
    "policy_evaluations": f"select t.* {_once('policy_evaluations_all')}",
    "commands": f"select t.* {_once('commands_all')}",
    "archives": f"select t.* {_once('archives_all')}",
    "unreadable": "select * from tables.unreadable_all",
}
"""View name to its query, in the order of their creation.

`values` has the latest annotation of each rollout by each annotator: layers are added, never changed, and
`values_all` has all of them. `pass_rates` divides by graded rollouts only: an aborted one has no reward and
is in a column of its own, and so is one that its site blocked, which is not counted among the aborted.
"""

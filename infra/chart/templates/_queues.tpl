{{/* Every queue as JSON: those of the values' list, and of each queue of rollouts one for every team. `path` is its name in
subjects, `consumer` that of its consumer, `name` that of its workers. */}}
{{- define "orchard.queues" }}
{{- $all := list }}
{{- range $queue := .Values.queues }}
{{- $all = append $all (include "orchard.queue" (list $queue "" .maxWorkers) | fromJson) }}
{{- if eq .kind "rollout" }}
{{- range $team, $has := $.Values.teams }}
{{- $all = append $all (include "orchard.queue" (list $queue $team $has.maxWorkers) | fromJson) }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{/* One of them: of a queue of the list, a team or nothing, and its number of workers. */}}
{{- define "orchard.queue" }}
{{- $queue := index . 0 }}
{{- $team := index . 1 }}
{{- $path := printf "%s.%s.%s%s" $queue.kind $queue.domain $queue.priority (empty $team | ternary "" (printf ":%s" $team)) }}
{{- $consumer := $path | replace "." "-" }}
{{- $name := $consumer | replace "_" "-" | replace ":" "-" }}
{{- toJson (merge (dict "path" $path "consumer" $consumer "name" $name "maxWorkers" (index . 2)) $queue) }}
{{- end }}

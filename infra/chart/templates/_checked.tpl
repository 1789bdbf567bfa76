{{/* What a schema cannot say of the values: each is a sentence that ends the rendering. */}}
{{- define "orchard.checked" }}
{{- $w := .Values.workers }}
{{- if le (int64 $w.graceSeconds) (int64 $w.shutdownSeconds) }}
{{- fail (printf "workers.graceSeconds (%d) must be above workers.shutdownSeconds (%d): a Pod is killed at its end" (int64 $w.graceSeconds) (int64 $w.shutdownSeconds)) }}
{{- end }}
{{- if le (int64 $w.deadlineSeconds) (add (int64 $w.maxAgeSeconds) (int64 $w.shutdownSeconds)) }}
{{- fail (printf "workers.deadlineSeconds (%d) must be above workers.maxAgeSeconds and workers.shutdownSeconds together (%d): it cuts off what still runs" (int64 $w.deadlineSeconds) (add (int64 $w.maxAgeSeconds) (int64 $w.shutdownSeconds))) }}
{{- end }}
{{- if gt (int64 .Values.orchestrator.replicas) (int64 .Values.orchestrator.maxReplicas) }}
{{- fail "orchestrator.maxReplicas must not be below orchestrator.replicas" }}
{{- end }}
{{- if and .Values.storeClaim (not (hasPrefix "/" .Values.store)) }}
{{- fail (printf "store is %s: with storeClaim it is the path at which the volume is" .Values.store) }}
{{- end }}
{{- with regexFind "(?m)^namespace *=.*$" .Values.sandboxes }}
{{- if ne (regexReplaceAll " +" . "") (printf "namespace=%q" (include "orchard.sandboxesNamespace" $)) }}
{{- fail (printf "sandboxes says %s: leave the namespace out, or let sandboxesNamespace say the same (%s)" . (include "orchard.sandboxesNamespace" $)) }}
{{- end }}
{{- end }}
{{- if and (not .Values.keda) (not .Values.nats.install) .Values.nats.url }}
{{- else if and (not .Values.nats.install) (not (and .Values.nats.url .Values.nats.monitoring)) }}
{{- fail "nats.url and nats.monitoring must say where NATS is, where nats.install is false" }}
{{- end }}
{{- $consumers := list }}
{{- $names := list }}
{{- range include "orchard.queues" . | fromJsonArray }}
{{- if has .name $names }}
{{- fail (printf "queues has %s twice, or one that differs by `_` and `-` alone" .consumer) }}
{{- end }}
{{- if gt (len .name) 52 }}
{{- fail (printf "the queue %s has a name of more than 52 characters, which its Jobs cannot have" .consumer) }}
{{- end }}
{{- $consumers = append $consumers .consumer }}
{{- $names = append $names .name }}
{{- end }}
{{- range $team, $has := .Values.teams }}
{{- if and $has.slots (ge (mul (int64 $has.maxWorkers) (int64 $w.slots)) (add (int64 $has.slots) (int64 $w.slots))) }}
{{- fail (printf "teams.%s.maxWorkers (%d) must be no more than its quota of %d slots needs: the others would find nothing" $team (int64 $has.maxWorkers) (int64 $has.slots)) }}
{{- end }}
{{- end }}
{{- range $queue := .Values.queues }}
{{- range .lends }}
{{- $lent := printf "%s-%s-%s" $queue.kind $queue.domain . }}
{{- if not (has $lent $consumers) }}
{{- fail (printf "the queue %s-%s-%s lends its slots to %s, which is not in queues" $queue.kind $queue.domain $queue.priority $lent) }}
{{- end }}
{{- if eq . $queue.priority }}
{{- fail (printf "the queue %s lends its slots to itself" $lent) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Slots that may wait at one queue, of all workers that serve it: the most of any queue. */}}
{{- define "orchard.slots" }}
{{- $most := 0 }}
{{- range $queue := .Values.queues }}
{{- $here := 0 }}
{{- range include "orchard.queues" $ | fromJsonArray }}
{{- if and (eq .kind $queue.kind) (eq .domain $queue.domain) (or (eq .priority $queue.priority) (has $queue.priority .lends)) }}
{{- $here = add $here (mul (int64 .maxWorkers) (int64 $.Values.workers.slots)) }}
{{- end }}
{{- end }}
{{- $most = max $most $here }}
{{- end }}
{{- $most }}
{{- end }}

{{/* Where KEDA asks for the lag, `host:port`. */}}
{{- define "orchard.monitoring" }}
{{- .Values.nats.monitoring | trimPrefix "https://" | default (printf "nats-monitoring.%s.svc.%s:8222" .Release.Namespace .Values.clusterDomain) }}
{{- end }}

{{/* Where the API server may be: no label says. Not the clouds' metadata services. */}}
{{- define "orchard.apiserver" }}
    - to:
        - ipBlock:
            cidr: 0.0.0.0/0
            except: [168.63.129.16/32, 169.254.0.0/16, 192.0.0.0/24, 198.18.0.0/15]
        - ipBlock:
            cidr: ::/0
            except: ["fd00:ec2::/32", "fe80::/10"]
      ports: [{protocol: TCP, port: 443}, {protocol: TCP, port: 6443}]
{{- end }}

{{/* Who may what at NATS, with the rights of workers on the queues of the list and on no others. */}}
{{- define "orchard.accounts" }}
{{- $rights := list }}
{{- range include "orchard.queues" . | fromJsonArray }}
{{- $rights = append $rights (printf "\"orchard.work.%s\", \"orchard.work.%s.>\", \"orchard.later.%s.>\"" .path .path .path) }}
{{- $rights = append $rights (printf "\"$JS.API.CONSUMER.CREATE.ORCHARD_WORK.%s\", \"$JS.ACK.ORCHARD_WORK.%s.>\"" .consumer .consumer) }}
{{- $rights = append $rights (printf "\"$JS.API.CONSUMER.MSG.NEXT.ORCHARD_WORK.%s\"" .consumer) }}
{{- end }}
{{- $all := .Files.Get "files/accounts.conf" }}
{{- $queues := regexFind "(?s)            # queues: .*            # end of queues\n" $all }}
{{- if not $queues }}{{ fail "files/accounts.conf has no part for queues" }}{{ end }}
{{- $all = $all | replace $queues (printf "            # of the values' `queues`\n%s\n" (join "\n" $rights | indent 12)) }}
{{- $lines := list }}
{{- range $line := splitList "\n" $all }}
{{- $lines = append $lines $line }}
{{- if regexMatch "orchard\\.events\\.|ORCHARD_EVENTS" $line }}
{{- range $stream := untilStep 1 (int $.Values.nats.eventStreams) 1 }}
{{- $lines = append $lines ($line | replace "orchard.events." (printf "orchard.events-%d." $stream) | replace "ORCHARD_EVENTS" (printf "ORCHARD_EVENTS_%d" $stream)) }}
{{- end }}
{{- end }}
{{- end }}
{{- join "\n" $lines }}
{{- end }}

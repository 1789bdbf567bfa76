{{/* What every process of ours reads, beside the values' `settings`. */}}
{{- define "orchard.settings" }}
ORCHARD_STORE: {{ .Values.store | quote }}
ORCHARD_NATS__URL: {{ .Values.nats.url | default (printf "tls://nats.%s.svc.%s:4222" .Release.Namespace .Values.clusterDomain) }}
{{- if .Values.secrets.natsCa }}
ORCHARD_NATS__TLS_CA: /etc/orchard/nats/ca.crt
{{- end }}
ORCHARD_NATS__REPLICAS: {{ min 3 (int .Values.nats.replicas) | quote }}
{{- if gt (int .Values.nats.eventStreams) 1 }}
ORCHARD_NATS__EVENT_STREAMS: {{ int .Values.nats.eventStreams | quote }}
{{- end }}
ORCHARD_NATS__QUEUES: {{ range $i, $q := include "orchard.queues" . | fromJsonArray }}{{ if $i }},{{ end }}{{ $q.path }}{{ end }}
{{- range $team, $has := .Values.teams }}
ORCHARD_TEAMS__{{ upper $team }}__SHARE: {{ $has.share | default 1 | quote }}
{{- with $has.slots }}
ORCHARD_TEAMS__{{ upper $team }}__SLOTS: {{ int64 . | quote }}
{{- end }}
{{- with $has.usdPerDay }}
ORCHARD_TEAMS__{{ upper $team }}__USD_PER_DAY: {{ . | quote }}
{{- end }}
{{- end }}
{{- $slots := include "orchard.slots" . | int64 }}
{{- if gt $slots 10000 }}
ORCHARD_NATS__MAX_ACK_PENDING: {{ $slots | toString | quote }}
{{- end }}
{{- if gt $slots 4096 }}
ORCHARD_NATS__MAX_WAITING: {{ $slots | toString | quote }}
{{- end }}
{{- if not .Values.nats.credentials }}
ORCHARD_NATS__PASSWORD_ENV: NATS_PASSWORD
{{- end }}
{{- if .Values.authorities.configMap }}
SSL_CERT_FILE: /etc/ssl/certs/ca-certificates.crt
{{- end }}
ORCHARD_SANDBOX__URL: http://orchestrator.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}:8080
{{- if .Values.warmFollowsQueue }}
ORCHARD_SANDBOX__FOLLOW_QUEUE: "true"
{{- end }}
{{- end }}

{{/* What every Pod may be given by the values. Each takes a list: the root, and the values of the part. */}}

{{/* More of a Pod's spec: where it runs, who pulls its images, and the part's `extra`; with the indent as third. */}}
{{- define "orchard.placed" }}
{{- $pods := (index . 0).Values.pods }}
{{- $part := index . 1 }}
{{- $spec := deepCopy $part.extra }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with get $part $key }}
{{- $_ := set $spec $key . }}
{{- end }}
{{- end }}
{{- with $pods.imagePullSecrets }}
{{- $_ := set $spec "imagePullSecrets" . }}
{{- end }}
{{- with $spec }}
{{- toYaml . | nindent (index $ 2) }}
{{- end }}
{{- end }}

{{/* More labels, to be written into braces. */}}
{{- define "orchard.labels" }}
{{- range $key, $value := merge dict (index . 1).labels (index . 0).Values.pods.labels }}, {{ $key }}: {{ $value | quote }}{{ end }}
{{- end }}

{{/* Annotations, of a fourth that the part has anyway too; with the indent as third. */}}
{{- define "orchard.annotations" }}
{{- $own := dict }}
{{- if gt (len .) 3 }}{{ $own = index . 3 }}{{ end }}
{{- with merge dict (index . 1).annotations (index . 0).Values.pods.annotations $own }}
{{- printf "annotations:" | nindent (int (index $ 2)) }}
{{- toYaml . | nindent (int (add (index $ 2) 2)) }}
{{- end }}
{{- end }}

{{/* More variables; with the indent as third. */}}
{{- define "orchard.env" }}
{{- with concat (index . 0).Values.pods.env (index . 1).env }}
{{- toYaml . | nindent (index $ 2) }}
{{- end }}
{{- end }}

{{/* How a role signs in at NATS: by a password, or by the file of its own in the Secret of credentials; root, role, indent. */}}
{{- define "orchard.signin" }}
{{- $values := (index . 0).Values }}
{{- if $values.nats.credentials }}
{{- printf "- {name: ORCHARD_NATS__CREDENTIALS, value: /etc/orchard/credentials/nats.creds}" | nindent (index . 2) }}
{{- else }}
{{- printf "- {name: ORCHARD_NATS__USER, value: %s}" (index . 1) | nindent (index . 2) }}
{{- printf "- {name: NATS_PASSWORD, valueFrom: {secretKeyRef: {name: %s, key: %s}}}" $values.secrets.natsUsers (index . 1) | nindent (index . 2) }}
{{- end }}
{{- if and $values.secrets.people (eq (index . 1) "operator") }}
{{- printf "- {name: ORCHARD_ACCESS__PEOPLE, value: /etc/orchard/people/people.toml}" | nindent (index . 2) }}
{{- end }}
{{- end }}

{{/* Volumes of a client of NATS and of the store: root, role, and the indent. */}}
{{- define "orchard.volumes" }}
{{- $values := (index . 0).Values }}
{{- $indent := int (index . 2) }}
{{- with and (index . 1) $values.secrets.natsCa }}
{{- printf "- {name: nats-ca, secret: {secretName: %s}}" . | nindent $indent }}
{{- end }}
{{- with and (index . 1) $values.nats.credentials }}
{{- printf "- {name: credentials, secret: {secretName: %s, items: [{key: %s.creds, path: nats.creds}]}}" . (index $ 1) | nindent $indent }}
{{- end }}
{{- if and $values.secrets.people (eq (index . 1) "operator") }}
{{- printf "- {name: people, secret: {secretName: %s, defaultMode: 0440}}" $values.secrets.people | nindent $indent }}
{{- end }}
{{- printf "- {name: tmp, emptyDir: {}}" | nindent $indent }}
{{- with $values.authorities.configMap }}
{{- printf "- {name: authorities, configMap: {name: %s}}" . | nindent $indent }}
{{- end }}
{{- if $values.storeClaim }}
{{- printf "- {name: store, persistentVolumeClaim: {claimName: store}}" | nindent $indent }}
{{- end }}
{{- end }}

{{/* Where it has them. */}}
{{- define "orchard.mounts" }}
{{- $values := (index . 0).Values }}
{{- $indent := int (index . 2) }}
{{- if and (index . 1) $values.secrets.natsCa }}
{{- printf "- {name: nats-ca, mountPath: /etc/orchard/nats, readOnly: true}" | nindent $indent }}
{{- end }}
{{- if and (index . 1) $values.nats.credentials }}
{{- printf "- {name: credentials, mountPath: /etc/orchard/credentials, readOnly: true}" | nindent $indent }}
{{- end }}
{{- if and $values.secrets.people (eq (index . 1) "operator") }}
{{- printf "- {name: people, mountPath: /etc/orchard/people, readOnly: true}" | nindent $indent }}
{{- end }}
{{- printf "- {name: tmp, mountPath: /tmp}" | nindent $indent }}
{{- with $values.authorities.configMap }}
{{- printf "- {name: authorities, mountPath: /etc/ssl/certs/ca-certificates.crt, subPath: %s, readOnly: true}" $values.authorities.key | nindent $indent }}
{{- end }}
{{- if $values.storeClaim }}
{{- printf "- {name: store, mountPath: %s}" $values.store | nindent $indent }}
{{- end }}
{{- end }}

{{/* Labels by which Prometheus selects monitors and rules, to be written into braces. */}}
{{- define "orchard.monitoringLabels" }}
{{- range $key, $value := .Values.monitoringLabels }}, {{ $key }}: {{ $value | quote }}{{ end }}
{{- end }}

{{/* Names that a second release has otherwise. */}}
{{- define "orchard.sandboxesNamespace" }}
{{- .Values.sandboxesNamespace | default (printf "%s-sandboxes" .Release.Namespace) }}
{{- end }}
{{- define "orchard.priorityClass" }}
{{- with .Values.priorityClass }}{{ .name | default $.Release.Namespace }}{{ end }}
{{- end }}

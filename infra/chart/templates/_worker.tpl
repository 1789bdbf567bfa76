{{/* The template of a worker's Pod: a list of the root, a queue, and the name of its workers. */}}
{{- define "orchard.worker" }}
{{- $root := index . 0 }}
{{- $queue := index . 1 }}
{{- $name := index . 2 }}
{{- $w := $root.Values.workers }}
{{- $stay := dict "karpenter.sh/do-not-disrupt" "true" "cluster-autoscaler.kubernetes.io/safe-to-evict" "false" }}
metadata:
  labels: {app.kubernetes.io/name: worker, app.kubernetes.io/part-of: orchard{{ if not $root.Values.keda }}, orchard/queue: {{ $name }}{{ end }}{{ include "orchard.labels" (list $root $w) }}}
  {{- include "orchard.annotations" (list $root $w 2 $stay) }}
spec:
  serviceAccountName: worker
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int64 $w.graceSeconds }}  # the longest rollout may end
  {{- if $root.Values.keda }}
  restartPolicy: Never
  {{- end }}
  {{- include "orchard.placed" (list $root $w 2) }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- if and $w.oracle (eq $queue.kind "rollout") }}
  initContainers:
    - name: oracle  # a sidecar that ends with the worker
      image: {{ $root.Values.images.worker }}
      restartPolicy: Always
      args: [oracle, "--port", "8790"]
      env:
        - {name: ORCHARD_STORE, value: {{ $root.Values.store | quote }}}
      startupProbe:
        exec: {command: [python, -c, "import socket; socket.create_connection(('127.0.0.1', 8790), 1)"]}
        periodSeconds: 1
        failureThreshold: 60
      resources:
        requests: {cpu: 50m, memory: 128Mi}
        limits: {memory: 512Mi}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        {{- if $root.Values.storeClaim }}
        - {name: store, mountPath: {{ $root.Values.store }}}
        {{- end }}
        - {name: tmp, mountPath: /tmp}
  {{- end }}
  containers:
    - name: worker
      image: {{ $root.Values.images.worker }}
      args: {{ include "orchard.words" (list $w $queue.kind $root.Values.keda) }}
      envFrom:
        - configMapRef: {name: settings}
        - secretRef: {name: {{ $root.Values.secrets.storeS3 }}, optional: true}
        - secretRef: {name: {{ $root.Values.secrets.modelKeys }}, optional: true}
      env:
        {{- include "orchard.signin" (list $root "worker" 8) }}
        - {name: ORCHARD_CONFIG, value: /etc/orchard/models/orchard.toml}
        - {name: SANDBOX_API_KEY, valueFrom: {secretKeyRef: {name: {{ $root.Values.secrets.sandboxKey }}, key: key}}}
        {{- if eq $queue.kind "rollout" }}
        - {name: ORCHARD_WORKER__DOMAIN, value: {{ $queue.domain | quote }}}
        - {name: ORCHARD_WORKER__PRIORITY, value: {{ $queue.priority | quote }}}
        {{- with $queue.lends }}
        - {name: ORCHARD_WORKER__LENDS, value: {{ join "," . | quote }}}
        {{- end }}
        {{- if $w.oracle }}
        - {name: ORCHARD_ENDPOINTS__ORACLE__BASE_URL, value: "http://127.0.0.1:8790/v1"}
        {{- end }}
        {{- end }}
        - {name: ORCHARD_UP__SHUTDOWN_SECONDS, value: {{ int64 $w.shutdownSeconds | toString | quote }}}
        {{- include "orchard.env" (list $root $w 8) }}
      resources: {{- toYaml $w.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: models, mountPath: /etc/orchard/models, readOnly: true}
        {{- include "orchard.mounts" (list $root "worker" 8) }}
  volumes:
    - {name: models, configMap: {name: models}}
    {{- include "orchard.volumes" (list $root "worker" 4) }}
{{- end }}

{{/* What a worker of a kind is started with: of how the workers are, the kind, and whether they end when idle. */}}
{{- define "orchard.words" }}
{{- $w := index . 0 }}
{{- $kind := index . 1 }}
{{- $words := list "worker" }}
{{- if has $kind (list "annotate" "dataset") }}
{{- $words = list (get (dict "annotate" "values" "dataset" "dataset") $kind) "worker" }}
{{- else if ne $kind "rollout" }}
{{- $words = list "worker" "--kinds" $kind }}
{{- end }}
{{- if index . 2 }}
{{- $words = concat $words (list "--idle-exit" (int64 $w.idleSeconds | toString)) }}
{{- end }}
{{- if ne $kind "dataset" }}
{{- $words = concat $words (list "--slots" (int64 $w.slots | toString)) }}
{{- end }}
{{- $words = concat $words (list "--max-age" (int64 $w.maxAgeSeconds | toString)) }}
{{- toJson $words }}
{{- end }}

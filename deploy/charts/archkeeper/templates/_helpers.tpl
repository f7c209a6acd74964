{{- define "archkeeper.name" -}}
{{- default .Chart.Name .Values.nameOverride | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "archkeeper.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "archkeeper.name" .) .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "archkeeper.name" .) | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "archkeeper.provider" -}}{{ include "archkeeper.fullname" . }}-provider{{- end -}}
{{- define "archkeeper.controllers" -}}{{ include "archkeeper.fullname" . }}-controllers{{- end -}}
{{- define "archkeeper.nodeagent" -}}{{ include "archkeeper.fullname" . }}-node-agent{{- end -}}
{{- define "archkeeper.uninstall" -}}{{ include "archkeeper.fullname" . }}-uninstall{{- end -}}

{{/* labels takes (list . component) */}}
{{- define "archkeeper.labels" -}}
{{- $root := index . 0 -}}
{{ include "archkeeper.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/part-of: archkeeper
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "archkeeper.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "archkeeper.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "archkeeper.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "archkeeper.providerSecret" -}}
{{- if eq .Values.tls.mode "provided" -}}
{{ required "tls.providerSecret is needed with tls.mode=provided" .Values.tls.providerSecret }}
{{- else -}}
{{ include "archkeeper.provider" . }}-tls
{{- end -}}
{{- end -}}

{{- define "archkeeper.controllersSecret" -}}
{{- if eq .Values.tls.mode "provided" -}}
{{ required "tls.controllersSecret is needed with tls.mode=provided" .Values.tls.controllersSecret }}
{{- else -}}
{{ include "archkeeper.controllers" . }}-tls
{{- end -}}
{{- end -}}

{{- define "archkeeper.gatekeeperSAN" -}}
{{- .Values.gatekeeper.clientSAN | default (printf "gatekeeper-webhook-service.%s.svc" .Values.gatekeeper.namespace) -}}
{{- end -}}

{{- define "archkeeper.mirrorsConfigMap" -}}{{ include "archkeeper.fullname" . }}-registries{{- end -}}
{{/* The service account and the Deployment that the controllers run as. */}}
{{- define "archkeeper.controllersRunAs" -}}
{{- if eq .Values.mode "allInOne" }}{{ include "archkeeper.provider" . }}{{ else }}{{ include "archkeeper.controllers" . }}{{ end -}}
{{- end -}}

{{/* What the controllers are told, whatever process they are in. */}}
{{- define "archkeeper.controllersArgs" -}}
{{- $enabled := list "certificates" -}}
{{- if .Values.controllers.placement.enabled }}{{ $enabled = append $enabled "placement" }}{{ end -}}
{{- if .Values.controllers.mirrors.enabled }}{{ $enabled = append $enabled "mirrors" }}{{ end -}}
{{- if .Values.controllers.importMode.enabled }}{{ $enabled = append $enabled "importmode" }}{{ end -}}
- --enable={{ join "," $enabled }}
- --namespace=$(POD_NAMESPACE)
- --lease={{ include "archkeeper.controllers" . }}
- --gatekeeper-namespace={{ .Values.gatekeeper.namespace }}
- --config=/etc/archkeeper/configuration/configuration.yaml
- --certificates=/etc/archkeeper/certificates/certificates.yaml
{{- if .Values.policies.placementConfigMap }}
- --policy-dir=/etc/archkeeper/policies
{{- end }}
{{- if .Values.controllers.mirrors.enabled }}
- --mirrors-configmap={{ include "archkeeper.mirrorsConfigMap" . }}
- --mirrors-delivery={{ .Values.controllers.mirrors.delivery }}
- --mirrors-max-disruption={{ .Values.controllers.mirrors.maxDisruption }}
{{- end }}
{{- if .Values.controllers.importMode.enabled }}
- --importmode-mode={{ .Values.controllers.importMode.mode }}
- --when-clusterversion-missing={{ .Values.controllers.importMode.whenClusterVersionMissing }}
{{- end }}
{{- with .Values.controllers.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "archkeeper.trust" -}}{{ include "archkeeper.fullname" . }}-trust{{- end -}}
{{- define "archkeeper.gatekeeperCA" -}}{{ include "archkeeper.fullname" . }}-gatekeeper-ca{{- end -}}

{{/* The namespaces that are never gated: the configured ones, our own and Gatekeeper's. */}}
{{- define "archkeeper.excludedNamespaces" -}}
{{- concat (.Values.configuration.placement.excludedNamespaces | default list) (list .Release.Namespace .Values.gatekeeper.namespace) | uniq | toJson -}}
{{- end -}}

{{- define "archkeeper.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "archkeeper.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The label by which Gatekeeper's mutation and our webhook leave a pod alone. */}}
{{- define "archkeeper.optOut" -}}
archkeeper.io/placement: disabled
{{- end -}}

{{/* spread takes (list . component) */}}
{{- define "archkeeper.spread" -}}
{{- $root := index . 0 -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "archkeeper.selector" . | nindent 8 }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: kubernetes.io/os, operator: In, values: [linux]}
            - {key: kubernetes.io/arch, operator: In, values: [amd64, arm64, ppc64le, s390x]}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "archkeeper.selector" . | nindent 14 }}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

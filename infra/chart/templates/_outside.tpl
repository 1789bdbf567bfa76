{{/* Egress to the world and to nothing private: public IPv4 and IPv6 addresses on 443, and what `egress` adds. */}}
{{- define "orchard.outside" }}
    - to:
        - ipBlock:
            cidr: 0.0.0.0/0
            except:
              - 10.0.0.0/8
              - 100.64.0.0/10
              - 168.63.129.16/32
              - 169.254.0.0/16
              - 172.16.0.0/12
              - 192.0.0.0/24
              - 192.168.0.0/16
              - 198.18.0.0/15
        - ipBlock:
            cidr: 2000::/3  # what is private, local or a metadata service lies outside of it
            except:
              - 2001::/32   # tunnels to IPv4 addresses
              - 2002::/16
      ports: [{protocol: TCP, port: 443}]
{{- with .Values.egress }}
{{ toYaml . | indent 4 }}
{{- end }}
{{- end }}

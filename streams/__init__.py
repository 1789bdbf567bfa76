"""The wire: subjects, streams, publishing, claiming, replay, and the embedded NATS server.

Everything here works the same against the embedded server and an external `nats://` cluster. Guarantees
come from JetStream (confirmed publishes, compare-and-set on the terminal event, explicit acknowledgement),
never from memory of a process.
"""

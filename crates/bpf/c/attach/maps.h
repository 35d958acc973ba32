/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The state of one network namespace. It is pinned: it outlives the truepeer process, and an upgrade finds it. */
#pragma once
#include "attach/counters.h"
#include "lib/policy.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be16);
	__type(value, struct port);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_GROUPS);
	__type(key, __u32);
	__type(value, struct terms);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_terms SEC(".maps");

/* Not LRU: forgetting a flow with a delta would break its connection. tcp_end.bpf.c writes a flow when the
 * socket is created and removes it when the socket ends, so there is never a flow without a socket. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768); /* src/sizes.rs sets it, and that of the next three */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, struct flow);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_flows SEC(".maps");

/* No event reports the end of a connection without a socket, so the oldest entries are replaced (LRU). A flood
 * of SYNs can therefore make a handshake forgotten; its later segments are refused, never passed. With
 * --max-flows 1048576 there is room for a sweep over all ports of one address beside as many real handshakes. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow_key);
	__type(value, struct pending);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_pending SEC(".maps");

/* Flows whose socket is gone but whose TIME_WAIT may still answer. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, struct flow_key);
	__type(value, struct flow);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_ended SEC(".maps");

/* The length of a sender's last header, as the guess for its next one. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, struct address);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_guesses SEC(".maps");

static __always_inline struct settings *settings_here(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&tp_settings, &only);
}

/* Whether tcp_ingress has validated this packet, on this device or on one below (go_on() in drop.h).
 * Devices set the priority of what they receive to 0. */
static __always_inline int is_validated(struct __sk_buff *skb)
{
	__u64 mark;

	/* As in go_on(): the compiler would add to the context's pointer, which the verifier forbids. */
	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(mark) : "r"(skb), "i"(offsetof(struct __sk_buff, priority)));
	struct settings *settings = mark ? settings_here() : 0;

	return settings && mark == settings->validated;
}

/* The terms of the attachment that a port belongs to. */
static __always_inline struct terms *terms_of(const struct port *port)
{
	__u32 group = port->group;

	return bpf_map_lookup_elem(&tp_terms, &group);
}

/* The reason to refuse a client that a header names (`is_claimed`), or the sender that stands for itself;
 * 0: it may be shown. */
static __always_inline enum counter validate_client(const struct address *address, int is_claimed, __u8 group)
{
	struct prefix client = host(address);

	if (is_claimed && is_claim_refused(&client, group))
		return REFUSED_CLAIM;
	if (is_denied(&client, group))
		return REFUSED_DENIED;
	return 0;
}

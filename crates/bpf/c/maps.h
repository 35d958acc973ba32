/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The state of one network namespace. It is pinned: it outlives the truepeer process, and an upgrade finds it. */
#pragma once
#include "counters.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PORTS);
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

/* In the values of the next three, two bits belong to each attachment (of_group). src/groups.rs puts the lists of all together. */

/* The senders: enum rule. Packets of all others pass unchanged. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_senders SEC(".maps");

/* Addresses that must not be claimed, and the exceptions: enum claim. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_claims SEC(".maps");

/* Clients that are refused. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1048576);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_denied SEC(".maps");

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
	__type(value, struct embryo);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} tp_embryos SEC(".maps");

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

static __always_inline struct prefix host(const struct address *address)
{
	return (struct prefix){ .bits = 128, .address = *address };
}

static __always_inline struct settings *settings_here(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&tp_settings, &only);
}

/* Of the attachment that a port belongs to. */
static __always_inline struct terms *terms_of(const struct port *port)
{
	__u32 group = port->group;

	return bpf_map_lookup_elem(&tp_terms, &group);
}

static __always_inline __u32 of_group(__u32 values, __u8 group)
{
	return values >> (group % MAX_GROUPS * 2) & 3;
}

/* Its rule in every attachment; 0: none lists it. */
static __always_inline __u32 sender_rules(const struct address *sender)
{
	struct prefix key = host(sender);
	__u32 *rules = bpf_map_lookup_elem(&tp_senders, &key);
	return rules ? *rules : 0;
}

/* The sender's enum rule; 0: it is not listed. */
static __always_inline __u32 sender_rule(const struct address *sender, __u8 group)
{
	return of_group(sender_rules(sender), group);
}

static __always_inline int is_denied(const struct prefix *client, __u8 group)
{
	__u32 *denied = bpf_map_lookup_elem(&tp_denied, client);
	return denied && of_group(*denied, group);
}

/* Whether a client that a header names, or the sender itself, may be shown; otherwise the reason. 0: it may. */
static __always_inline enum counter judge(const struct address *address, int is_claimed, __u8 group)
{
	struct prefix client = host(address);

	if (is_claimed) {
		__u32 *claim = bpf_map_lookup_elem(&tp_claims, &client);
		if (claim && of_group(*claim, group) == CLAIM_REFUSED)
			return REFUSED_CLAIM;
	}
	if (is_denied(&client, group))
		return REFUSED_DENIED;
	return 0;
}

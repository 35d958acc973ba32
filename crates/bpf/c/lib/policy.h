/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The lists of the policy: who may send, who may be claimed, who is refused. */
#pragma once
#include "attach/layout.h"

/* In the values of these three tables, two bits belong to each attachment (of_group). src/groups.rs puts the lists of all attachments together. */

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

static __always_inline struct prefix host(const struct address *address)
{
	return (struct prefix){ .bits = 128, .address = *address };
}

static __always_inline __u32 of_group(__u32 values, __u8 group)
{
	return values >> (group % MAX_GROUPS * 2) & 3;
}

/* The sender's rules in all attachments; 0: none lists it. */
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

static __always_inline int is_claim_refused(const struct prefix *client, __u8 group)
{
	__u32 *claim = bpf_map_lookup_elem(&tp_claims, client);
	return claim && of_group(*claim, group) == CLAIM_REFUSED;
}

/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* Runs before an answer is routed: the backend sends it to the client; this redirects it to the sender, from
 * the address that the client's datagrams used. So this host needs no route to the client. */
#include "attach/udp_take_slot.h"

/* Other namespaces may use the same addresses; set when the program is loaded. */
const volatile __u64 netns_cookie = 0;

#define SEND 1
#define REFUSE 0 /* sendmsg() fails with EPERM */

/* An answer: the backend's addresses, and the rewritten ones. */
struct answer {
	struct udp_key key;
	struct address from; /* 0: the kernel chooses */
	struct address to;
	__be16 to_port;
};

/* The backend that sends it; NULL: not attached. */
static __always_inline struct backend *backend_of(struct bpf_sock_addr *ctx, struct answer *answer)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk)
		return 0;
	answer->key.backend_port = bpf_htons(sk->src_port);
	struct backend *backend = bpf_map_lookup_elem(&tp_backends, &answer->key.backend_port);
	if (!backend || bpf_get_netns_cookie(ctx) != netns_cookie)
		return 0;
	answer->key.client_port = ctx->user_port;
	return backend;
}

/* A datagram that the backend sends to a sender on its own keeps its addresses. It needs a slot nevertheless:
 * its port might equal a slot's number. */
static __always_inline int send_by_itself(const struct backend *backend, struct answer *answer)
{
	if (backend->kind != ANSWERS_BY_SLOT || !sender_rule(&answer->key.client, backend->group))
		return SEND;
	struct udp_slot slot = {
		.sender = answer->key.client,
		.backend_port = answer->key.backend_port,
		.sender_port = answer->key.client_port,
		.port = answer->key.backend_port,
		.counters = backend->counters,
	};
	__be16 number = take_slot(&slot, 0, 0);
	if (!number) {
		count_at(backend->counters, ANSWER_REFUSED);
		return REFUSE;
	}
	answer->to_port = number;
	return SEND;
}

static __always_inline int is_chosen(const struct address *from)
{
	return !is_no_address(from) && !(from->word[2] == MAPPED && !from->word[3]) && !is_loopback(from);
}

/* Redirects the answer to its sender. */
static __noinline int turn(const struct backend *backend, struct answer *answer)
{
	struct udp_flow flow = {};
	struct udp_flow *entry = copy_udp_flow(&answer->key, &answer->from, &flow);

	answer->to = answer->key.client;
	answer->to_port = answer->key.client_port;
	if (!entry)
		return send_by_itself(backend, answer);
	__be16 port = flow.sender_port;
	if (flow.needs_slot) {
		struct udp_slot slot;
		describe(&slot, &answer->key, &flow);
		port = take_slot(&slot, flow.ticket, entry);
		if (!port) {
			count_at(flow.counters, ANSWER_REFUSED);
			return REFUSE;
		}
	}
	if (!is_chosen(&answer->from))
		answer->from = flow.local;
	answer->to = flow.sender;
	answer->to_port = port;
	count_at(flow.counters, ANSWER);
	return SEND;
}

SEC("cgroup/sendmsg4")
int udp_send4(struct bpf_sock_addr *ctx)
{
	struct answer answer = {};
	struct backend *backend = backend_of(ctx, &answer);
	__be32 from = ctx->msg_src_ip4;

	if (!backend)
		return SEND;
	answer.key.client.word[2] = MAPPED;
	answer.key.client.word[3] = ctx->user_ip4;
	if (from) {
		answer.from.word[2] = MAPPED;
		answer.from.word[3] = from;
	}
	int verdict = turn(backend, &answer);
	if (answer.from.word[3])
		ctx->msg_src_ip4 = answer.from.word[3];
	ctx->user_ip4 = answer.to.word[3];
	ctx->user_port = answer.to_port;
	return verdict;
}

SEC("cgroup/sendmsg6")
int udp_send6(struct bpf_sock_addr *ctx)
{
	struct answer answer = {};
	struct backend *backend = backend_of(ctx, &answer);

	if (!backend)
		return SEND;
	COPY_IPV6(answer.key.client.word, ctx->user_ip6);
	COPY_IPV6(answer.from.word, ctx->msg_src_ip6);
	int verdict = turn(backend, &answer);
	COPY_IPV6(ctx->msg_src_ip6, answer.from.word);
	COPY_IPV6(ctx->user_ip6, answer.to.word);
	ctx->user_port = answer.to_port;
	return verdict;
}

char _license[] SEC("license") = "Dual MIT/GPL";

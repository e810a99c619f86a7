/* A stand-in for libibverbs with one device whose queue pairs reach each other within the process.
 *
 * It keeps what a card would: states and the attributes each needs, keys, bounds, receive requests in order,
 * room in queues that returns only with a completion, flushing, events of channels that must be
 * acknowledged. What a caller may not do it refuses, or ends the process with a line that says what was
 * wrong: destroying what is in use, an event not acknowledged.
 *
 * cc -DNO_DEVICES: there is none. cc -DOLD: as before rdma-core 32. cc -DTWO_HOSTS: more addresses. */
#define _GNU_SOURCE
#include "abi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAIRS 256
#define REGIONS 1024
#define VECTORS 4
#define PIECES 4
#define INLINE 64

struct ibv_device {
	const char *name;
	uint64_t guid;
};

/* What is asked of a queue pair, until its completion was taken or its success was not to have one. */
struct request {
	uint64_t id, remote_addr;
	uint32_t rkey, imm;
	unsigned int opcode, flags;
	int pieces;
	struct ibv_sge sge[PIECES];
	unsigned char inlined[INLINE];
};

struct receive {
	uint64_t id;
	int pieces;
	struct ibv_sge sge[PIECES];
};

struct queue {
	struct ibv_cq cq;
	struct ibv_wc *ring;
	/* Requests whose room a completion gives back, and to whom. */
	struct { struct pair *pair; unsigned int sends; } *room;
	unsigned int head, count;
	int pairs;
	/* 0: not armed; 1: for the next; 2: for solicited ones. */
	int armed, overrun;
	unsigned int events, acknowledged;
};

struct pair {
	struct ibv_qp qp;
	struct ibv_qp_attr attr;
	struct ibv_qp_cap cap;
	struct request *sends;
	struct receive *receives;
	/* Taken from the queue in order; `waiting` are not carried out yet, `held` have their room still. */
	unsigned int send_head, waiting, held, unsignaled;
	unsigned int receive_head, receive_count;
	uint32_t next_psn, expected_psn;
};

struct device {
	struct ibv_context context;
	int async_in, domains, queues, channels;
};

struct domain {
	struct ibv_pd pd;
	int users;
};

struct channel {
	struct ibv_comp_channel channel;
	int in, queues;
};

struct region {
	struct ibv_mr mr;
	uint64_t iova;
	int access;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pair *pairs[PAIRS];
static struct region *regions[REGIONS];
static uint32_t turns;
static struct device *newest;
static struct ibv_device the_device = { "fake0", 0 };

static void must(int right, const char *what)
{
	if (!right) {
		fprintf(stderr, "fake libibverbs: %s\n", what);
		abort();
	}
}

static void count(int *what, int more) { __atomic_add_fetch(what, more, __ATOMIC_SEQ_CST); }

static void *refuse(int error)
{
	errno = error;
	return NULL;
}

/* Devices. */

struct ibv_device **ibv_get_device_list(int *count)
{
#ifdef NO_DEVICES
	int there = 0;
#else
	int there = 1;
#endif
	struct ibv_device **list = calloc(there + 1, sizeof(*list));

	/* 02:00:00:ff:fe:00:00:01, in network order. */
	memcpy(&the_device.guid, "\x02\0\0\xff\xfe\0\0\x01", 8);
	if (there)
		list[0] = &the_device;
	*count = there;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *device) { return device->name; }
uint64_t ibv_get_device_guid(struct ibv_device *device) { return device->guid; }

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *to);
static int req_notify_cq(struct ibv_cq *cq, int solicited_only);
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct device *open = calloc(1, sizeof(*open));
	int pipes[2];

	must(pipe2(pipes, O_CLOEXEC) == 0, "no pipe");
	open->async_in = pipes[1];
	open->context = (struct ibv_context){
		.device = device, .cmd_fd = -1, .async_fd = pipes[0], .num_comp_vectors = VECTORS,
		.ops = { .poll_cq = poll_cq, .req_notify_cq = req_notify_cq,
			 .post_send = post_send, .post_recv = post_recv },
	};
	newest = open;
	return &open->context;
}

int ibv_close_device(struct ibv_context *context)
{
	struct device *device = (struct device *)context;

	must(!device->domains && !device->queues && !device->channels, "a device in use is closed");
	close(context->async_fd);
	close(device->async_in);
	free(device);
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *to)
{
	(void)context;
	memset(to, 0, sizeof(*to));
	to->max_qp = PAIRS;
	to->max_qp_wr = 1024;
	to->max_sge = PIECES;
	to->max_cq = 64;
	to->max_cqe = 4096;
	to->max_mr = REGIONS;
	to->max_mr_size = 1ull << 40;
	to->phys_port_cnt = 1;
	return 0;
}

/* A link-local address, and one of IPv4 for each version of RoCE; on the next place nothing. With TWO_HOSTS
 * those of two hosts, 127.91.250.1 and .2, each with a second one, .11 and .12. */
static const struct { uint8_t kind, raw[16]; } gids[] = {
	{ IBV_GID_TYPE_ROCE_V1, { 0xfe, 0x80, [11] = 0xff, 0xfe, 0, 0, 1 } },
	{ IBV_GID_TYPE_ROCE_V1, { [10] = 0xff, 0xff, 10, 9, 0, 1 } },
	{ IBV_GID_TYPE_ROCE_V2, { [10] = 0xff, 0xff, 10, 9, 0, 1 } },
	{ 0 },
#ifdef TWO_HOSTS
	{ IBV_GID_TYPE_ROCE_V2, { [10] = 0xff, 0xff, 127, 91, 250, 1 } },
	{ IBV_GID_TYPE_ROCE_V2, { [10] = 0xff, 0xff, 127, 91, 250, 2 } },
	{ IBV_GID_TYPE_ROCE_V2, { [10] = 0xff, 0xff, 127, 91, 250, 11 } },
	{ IBV_GID_TYPE_ROCE_V2, { [10] = 0xff, 0xff, 127, 91, 250, 12 } },
#endif
};
enum { GIDS = sizeof(gids) / sizeof(gids[0]) };

int ibv_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *to)
{
	(void)context;
	if (port != 1)
		return EINVAL;
	memset(to, 0, sizeof(*to));
	to->state = IBV_PORT_ACTIVE;
	to->max_mtu = IBV_MTU_4096;
	to->active_mtu = IBV_MTU_1024;
	to->gid_tbl_len = GIDS;
	to->link_layer = IBV_LINK_LAYER_ETHERNET;
	return 0;
}

#ifndef OLD
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *to, size_t room,
			     uint32_t flags, size_t size)
{
	size_t count = 0;

	(void)context;
	if (flags || size != sizeof(*to))
		return -EINVAL;
	for (uint32_t index = 0; index < GIDS; index++) {
		if (!gids[index].kind)
			continue;
		if (count == room)
			return -EINVAL;
		memset(&to[count], 0, sizeof(*to));
		memcpy(to[count].gid.raw, gids[index].raw, 16);
		to[count].gid_index = index;
		to[count].port_num = 1;
		to[count].gid_type = gids[index].kind;
		to[count].ndev_ifindex = 7;
		count++;
	}
	return count;
}
#endif

/* A descriptor whose other end is gone stands for a device that is: the kernel says EIO. */
static int take_event(int fd, void *to, size_t bytes)
{
	ssize_t taken = read(fd, to, bytes);

	if (taken == 0)
		errno = EIO;
	return taken == (ssize_t)bytes ? 0 : -1;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *to)
{
	return take_event(context->async_fd, to, sizeof(*to));
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	if (event->event_type == IBV_EVENT_QP_ACCESS_ERR)
		event->element.qp->events_completed++;
}

/* For tests: something happens to the port of the device that was opened last. */
void fake_port_event(unsigned int type)
{
	struct ibv_async_event event = { .element.port_num = 1, .event_type = type };

	must(write(newest->async_in, &event, sizeof(event)) > 0, "no event");
}

/* Memory. */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct domain *domain = calloc(1, sizeof(*domain));

	domain->pd.context = context;
	count(&((struct device *)context)->domains, 1);
	return &domain->pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	must(!((struct domain *)pd)->users, "a protection domain in use is freed");
	count(&((struct device *)pd->context)->domains, -1);
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *start, size_t bytes, uint64_t iova, int access)
{
	struct region *region;
	uint32_t at = 0;

	if (((access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE)) ||
	    (iova ^ (uintptr_t)start) & 4095)
		return refuse(EINVAL);
	pthread_mutex_lock(&lock);
	while (at < REGIONS && regions[at])
		at++;
	if (at == REGIONS) {
		pthread_mutex_unlock(&lock);
		return refuse(ENOMEM);
	}
	region = calloc(1, sizeof(*region));
	region->access = access;
	region->iova = iova;
	region->mr = (struct ibv_mr){ .context = pd->context, .pd = pd, .addr = start, .length = bytes };
	/* The two keys differ, and each from those before it of the same place. */
	region->mr.lkey = at << 8 | (turns++ & 0x7f);
	region->mr.rkey = region->mr.lkey | 0x80;
	regions[at] = region;
	count(&((struct domain *)pd)->users, 1);
	pthread_mutex_unlock(&lock);
	return &region->mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	pthread_mutex_lock(&lock);
	must(regions[mr->lkey >> 8] == (struct region *)mr, "a region that is none");
	regions[mr->lkey >> 8] = NULL;
	count(&((struct domain *)mr->pd)->users, -1);
	free(mr);
	pthread_mutex_unlock(&lock);
	return 0;
}

/* The bytes that a key gives access to; NULL: none of these. */
static unsigned char *reach(struct ibv_pd *pd, uint32_t key, int remote, uint64_t at, uint64_t bytes,
			    int access)
{
	struct region *region = key >> 8 < REGIONS ? regions[key >> 8] : NULL;
	uint64_t start;

	if (!region || (remote ? region->mr.rkey : region->mr.lkey) != key || region->mr.pd != pd)
		return NULL;
	start = region->iova;
	if (at < start || bytes > region->mr.length || at - start > region->mr.length - bytes)
		return NULL;
	return (region->access & access) == access ?
		(unsigned char *)region->mr.addr + (at - start) : NULL;
}

/* Completions. */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *channel = calloc(1, sizeof(*channel));
	int pipes[2];

	must(pipe2(pipes, O_CLOEXEC) == 0, "no pipe");
	channel->channel = (struct ibv_comp_channel){ .context = context, .fd = pipes[0] };
	channel->in = pipes[1];
	count(&((struct device *)context)->channels, 1);
	return &channel->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	must(!((struct channel *)channel)->queues, "a channel in use is destroyed");
	count(&((struct device *)channel->context)->channels, -1);
	close(channel->fd);
	close(((struct channel *)channel)->in);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int room, void *token,
			     struct ibv_comp_channel *channel, int vector)
{
	struct queue *queue;

	if (room < 1 || room > 4096 || vector < 0 || vector >= VECTORS)
		return refuse(EINVAL);
	queue = calloc(1, sizeof(*queue));
	queue->cq.context = context;
	queue->cq.channel = channel;
	queue->cq.cq_context = token;
	queue->cq.cqe = room;
	queue->ring = calloc(room, sizeof(*queue->ring));
	queue->room = calloc(room, sizeof(*queue->room));
	count(&((struct device *)context)->queues, 1);
	if (channel)
		count(&((struct channel *)channel)->queues, 1);
	return &queue->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct queue *queue = (struct queue *)cq;

	must(!queue->pairs, "a completion queue in use is destroyed");
	/* The real one waits, for ever. */
	must(queue->events == queue->acknowledged, "an event of a completion queue was not acknowledged");
	if (cq->channel)
		count(&((struct channel *)cq->channel)->queues, -1);
	count(&((struct device *)cq->context)->queues, -1);
	free(queue->ring);
	free(queue->room);
	free(queue);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **token)
{
	if (take_event(channel->fd, cq, sizeof(*cq)))
		return -1;
	*token = (*cq)->cq_context;
	__atomic_add_fetch(&((struct queue *)*cq)->events, 1, __ATOMIC_SEQ_CST);
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	__atomic_add_fetch(&((struct queue *)cq)->acknowledged, count, __ATOMIC_SEQ_CST);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	struct queue *queue = (struct queue *)cq;

	pthread_mutex_lock(&lock);
	if (queue->armed != 1)
		queue->armed = solicited_only ? 2 : 1;
	pthread_mutex_unlock(&lock);
	return 0;
}

static void complete(struct ibv_cq *cq, struct ibv_wc wc, struct pair *pair, unsigned int sends,
		     int solicited)
{
	struct queue *queue = (struct queue *)cq;
	unsigned int at = (queue->head + queue->count) % cq->cqe;

	if (queue->count == (unsigned int)cq->cqe) {
		queue->overrun = 1;
		return;
	}
	wc.qp_num = pair->qp.qp_num;
	/* Only id, status and queue pair are good when something failed. */
	if (wc.status) {
		wc.opcode = wc.byte_len = wc.wc_flags = 0xdead;
		wc.vendor_err = 0x99;
	}
	queue->ring[at] = wc;
	queue->room[at].pair = pair;
	queue->room[at].sends = sends;
	queue->count++;
	if (queue->armed == 1 || (queue->armed == 2 && (solicited || wc.status))) {
		queue->armed = 0;
		must(!cq->channel || write(((struct channel *)cq->channel)->in, &cq, sizeof(cq)) > 0,
		     "no event");
	}
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *to)
{
	struct queue *queue = (struct queue *)cq;
	int taken = 0;

	pthread_mutex_lock(&lock);
	while (!queue->overrun && taken < most && queue->count) {
		struct pair *pair = queue->room[queue->head].pair;

		to[taken++] = queue->ring[queue->head];
		pair->held -= queue->room[queue->head].sends;
		queue->head = (queue->head + 1) % cq->cqe;
		queue->count--;
	}
	taken = queue->overrun ? -1 : taken;
	pthread_mutex_unlock(&lock);
	return taken;
}

/* Queue pairs. */

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct pair *pair;
	uint32_t at = 0;

	if (init->qp_type != IBV_QPT_RC || !init->send_cq || !init->recv_cq || init->srq ||
	    init->cap.max_send_wr > 1024 || init->cap.max_recv_wr > 1024 ||
	    init->cap.max_send_sge > PIECES || init->cap.max_recv_sge > PIECES ||
	    init->cap.max_inline_data > INLINE)
		return refuse(EINVAL);
	pthread_mutex_lock(&lock);
	while (at < PAIRS && pairs[at])
		at++;
	if (at == PAIRS) {
		pthread_mutex_unlock(&lock);
		return refuse(ENOMEM);
	}
	pair = calloc(1, sizeof(*pair));
	/* What is granted is what is asked for, but for bytes inline: as many as there are. */
	init->cap.max_inline_data = INLINE;
	pair->cap = init->cap;
	pair->sends = calloc(init->cap.max_send_wr + 1, sizeof(*pair->sends));
	pair->receives = calloc(init->cap.max_recv_wr + 1, sizeof(*pair->receives));
	pair->qp.context = pd->context;
	pair->qp.pd = pd;
	pair->qp.send_cq = init->send_cq;
	pair->qp.recv_cq = init->recv_cq;
	pair->qp.qp_type = init->qp_type;
	pair->qp.qp_num = 0x10 + at + ((turns++ & 0xff) << 12);
	pairs[at] = pair;
	count(&((struct domain *)pd)->users, 1);
	count(&((struct queue *)init->send_cq)->pairs, 1);
	count(&((struct queue *)init->recv_cq)->pairs, 1);
	pthread_mutex_unlock(&lock);
	return &pair->qp;
}

static struct pair *find(uint32_t number)
{
	uint32_t at = (number & 0xfff) - 0x10;
	struct pair *pair = at < PAIRS ? pairs[at] : NULL;

	return pair && pair->qp.qp_num == number ? pair : NULL;
}

/* Completions of a queue pair that is gone vanish, as the specification lets them. */
static void forget(struct ibv_cq *cq, struct pair *pair)
{
	struct queue *queue = (struct queue *)cq;
	unsigned int kept = 0;

	for (unsigned int n = 0; n < queue->count; n++) {
		unsigned int from = (queue->head + n) % cq->cqe, to = (queue->head + kept) % cq->cqe;

		if (queue->room[from].pair == pair)
			continue;
		queue->ring[to] = queue->ring[from];
		queue->room[to] = queue->room[from];
		kept++;
	}
	queue->count = kept;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct pair *pair = (struct pair *)qp;

	pthread_mutex_lock(&lock);
	must(find(qp->qp_num) == pair, "a queue pair that is none");
	pairs[(qp->qp_num & 0xfff) - 0x10] = NULL;
	forget(qp->send_cq, pair);
	forget(qp->recv_cq, pair);
	count(&((struct queue *)qp->send_cq)->pairs, -1);
	count(&((struct queue *)qp->recv_cq)->pairs, -1);
	count(&((struct domain *)qp->pd)->users, -1);
	pthread_mutex_unlock(&lock);
	free(pair->sends);
	free(pair->receives);
	free(pair);
	return 0;
}

static void flush(struct pair *pair)
{
	while (pair->waiting) {
		struct request *request = &pair->sends[pair->send_head];
		struct ibv_wc wc = { .wr_id = request->id, .status = IBV_WC_WR_FLUSH_ERR };

		pair->send_head = (pair->send_head + 1) % pair->cap.max_send_wr;
		pair->waiting--;
		complete(pair->qp.send_cq, wc, pair, pair->unsignaled + 1, 0);
		pair->unsignaled = 0;
	}
	while (pair->receive_count) {
		struct ibv_wc wc = { .wr_id = pair->receives[pair->receive_head].id,
				     .status = IBV_WC_WR_FLUSH_ERR };

		pair->receive_head = (pair->receive_head + 1) % pair->cap.max_recv_wr;
		pair->receive_count--;
		complete(pair->qp.recv_cq, wc, pair, 0, 0);
	}
}

static void fail(struct pair *pair)
{
	pair->qp.state = pair->attr.qp_state = IBV_QPS_ERR;
	flush(pair);
}

/* The peer of a failed one hears of it, as a responder that has answered with an error. */
static void fail_responder(struct pair *pair)
{
	struct ibv_async_event event = { .element.qp = &pair->qp,
					 .event_type = IBV_EVENT_QP_ACCESS_ERR };

	must(write(((struct device *)pair->qp.context)->async_in, &event, sizeof(event)) > 0,
	     "no event");
	fail(pair);
}

/* Copies between a list of pieces and bytes; 0: a key does not allow it. */
static int spread(struct pair *pair, struct ibv_sge *sge, int pieces, unsigned char *bytes,
		  uint64_t count, int out)
{
	for (int n = 0; n < pieces && count; n++) {
		uint64_t part = sge[n].length < count ? sge[n].length : count;
		unsigned char *at = reach(pair->qp.pd, sge[n].lkey, 0, sge[n].addr, sge[n].length,
					  out ? 0 : IBV_ACCESS_LOCAL_WRITE);

		if (!at)
			return 0;
		if (out)
			memcpy(bytes, at, part);
		else
			memcpy(at, bytes, part);
		bytes += part;
		count -= part;
	}
	return 1;
}

static uint64_t total(struct ibv_sge *sge, int pieces)
{
	uint64_t sum = 0;

	for (int n = 0; n < pieces; n++)
		sum += sge[n].length;
	return sum;
}

/* Gives the peer's next receive request a message; a status of the sender, or -1: it has none. */
static int deliver(struct pair *peer, struct request *request, unsigned char *bytes, uint64_t count)
{
	struct receive *receive = &peer->receives[peer->receive_head];
	struct ibv_wc wc = { .opcode = IBV_WC_RECV, .byte_len = count };
	int message = request->opcode == IBV_WR_SEND || request->opcode == IBV_WR_SEND_WITH_IMM;
	int solicited = !!(request->flags & IBV_SEND_SOLICITED), status = IBV_WC_SUCCESS;

	if (!peer->receive_count)
		return -1;
	wc.wr_id = receive->id;
	if (!message)
		wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
	if (request->opcode == IBV_WR_SEND_WITH_IMM || !message) {
		wc.imm_data = request->imm;
		wc.wc_flags = IBV_WC_WITH_IMM;
	}
	if (message && count > total(receive->sge, receive->pieces)) {
		wc.status = IBV_WC_LOC_LEN_ERR;
		status = IBV_WC_REM_INV_REQ_ERR;
	} else if (message && !spread(peer, receive->sge, receive->pieces, bytes, count, 0)) {
		wc.status = IBV_WC_LOC_PROT_ERR;
		status = IBV_WC_REM_OP_ERR;
	}
	peer->receive_head = (peer->receive_head + 1) % peer->cap.max_recv_wr;
	peer->receive_count--;
	complete(peer->qp.recv_cq, wc, peer, 0, solicited);
	if (status)
		fail_responder(peer);
	return status;
}

static int is_write(struct request *request)
{
	return request->opcode == IBV_WR_RDMA_WRITE || request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

/* Carries out one request; a status, or -1: not yet. */
static int carry_out(struct pair *pair, struct request *request)
{
	uint64_t count = total(request->sge, request->pieces);
	struct pair *peer = find(pair->attr.dest_qp_num);
	unsigned char *bytes = malloc(count + 1), *to;
	int status = IBV_WC_SUCCESS;

	if (request->flags & IBV_SEND_INLINE)
		memcpy(bytes, request->inlined, count);
	else if (!spread(pair, request->sge, request->pieces, bytes, count, 1))
		status = IBV_WC_LOC_PROT_ERR;
	if (!status && (!peer || peer->attr.dest_qp_num != pair->qp.qp_num ||
			peer->qp.state < IBV_QPS_RTR || peer->qp.state > IBV_QPS_RTS ||
			peer->expected_psn != pair->next_psn))
		status = IBV_WC_RETRY_EXC_ERR;
	if (!status && is_write(request) && count) {
		to = reach(peer->qp.pd, request->rkey, 1, request->remote_addr, count,
			   IBV_ACCESS_REMOTE_WRITE);
		if (to && (peer->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) {
			memcpy(to, bytes, count);
		} else {
			status = IBV_WC_REM_ACCESS_ERR;
			fail_responder(peer);
		}
	}
	if (!status && request->opcode != IBV_WR_RDMA_WRITE)
		status = deliver(peer, request, bytes, count);
	if (!status)
		pair->next_psn = peer->expected_psn = (pair->next_psn + 1) & 0xffffff;
	free(bytes);
	return status;
}

static void progress(struct pair *pair)
{
	while (pair->waiting && pair->qp.state == IBV_QPS_RTS) {
		struct request *request = &pair->sends[pair->send_head];
		struct ibv_wc wc = { .wr_id = request->id };
		int status = carry_out(pair, request);

		if (status < 0)
			return;
		wc.status = status;
		wc.opcode = is_write(request) ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
		pair->send_head = (pair->send_head + 1) % pair->cap.max_send_wr;
		pair->waiting--;
		pair->unsignaled++;
		if (status || (request->flags & IBV_SEND_SIGNALED)) {
			complete(pair->qp.send_cq, wc, pair, pair->unsignaled, 0);
			pair->unsignaled = 0;
		}
		if (status)
			fail(pair);
	}
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *to, int mask)
{
	static const int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	static const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			       IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	static const int rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	struct pair *pair = (struct pair *)qp;
	struct ibv_qp_attr *at = &pair->attr;
	int right = 0;

	pthread_mutex_lock(&lock);
	if (to->qp_state == IBV_QPS_INIT && qp->state == IBV_QPS_RESET) {
		right = mask == init && to->port_num == 1 && to->pkey_index == 0;
		at->port_num = to->port_num;
		at->qp_access_flags = to->qp_access_flags;
	} else if (to->qp_state == IBV_QPS_RTR && qp->state == IBV_QPS_INIT) {
		right = mask == rtr && to->ah_attr.is_global && to->ah_attr.port_num == 1 &&
			to->ah_attr.grh.sgid_index < GIDS &&
			gids[to->ah_attr.grh.sgid_index].kind == IBV_GID_TYPE_ROCE_V2 && to->path_mtu >= IBV_MTU_256 &&
			to->path_mtu <= IBV_MTU_1024 &&
			to->dest_qp_num != qp->qp_num;
		at->ah_attr = to->ah_attr;
		at->path_mtu = to->path_mtu;
		at->dest_qp_num = to->dest_qp_num;
		pair->expected_psn = at->rq_psn = to->rq_psn;
		at->min_rnr_timer = to->min_rnr_timer;
	} else if (to->qp_state == IBV_QPS_RTS && qp->state == IBV_QPS_RTR) {
		right = mask == rts && to->timeout < 32 && to->retry_cnt < 8 && to->rnr_retry < 8;
		pair->next_psn = at->sq_psn = to->sq_psn;
		at->timeout = to->timeout;
		at->retry_cnt = to->retry_cnt;
		at->rnr_retry = to->rnr_retry;
	} else if (to->qp_state == IBV_QPS_ERR) {
		right = mask == IBV_QP_STATE;
	}
	if (right) {
		qp->state = at->qp_state = to->qp_state;
		if (to->qp_state == IBV_QPS_ERR)
			flush(pair);
	}
	pthread_mutex_unlock(&lock);
	return right ? 0 : EINVAL;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *to, int mask, struct ibv_qp_init_attr *init)
{
	(void)mask;
	(void)init;
	pthread_mutex_lock(&lock);
	*to = ((struct pair *)qp)->attr;
	to->sq_psn = ((struct pair *)qp)->next_psn;
	pthread_mutex_unlock(&lock);
	return 0;
}

/* Takes one request over; an errno. */
static int take(struct pair *pair, struct ibv_send_wr *wr)
{
	struct request *request;
	uint64_t count;

	if (pair->qp.state != IBV_QPS_RTS && pair->qp.state != IBV_QPS_ERR)
		return EINVAL;
	if (wr->num_sge < 0 || wr->num_sge > (int)pair->cap.max_send_sge ||
	    wr->opcode > IBV_WR_SEND_WITH_IMM)
		return EINVAL;
	count = total(wr->sg_list, wr->num_sge);
	if ((wr->send_flags & IBV_SEND_INLINE) && count > pair->cap.max_inline_data)
		return EINVAL;
	if (pair->held == pair->cap.max_send_wr)
		return ENOMEM;
	request = &pair->sends[(pair->send_head + pair->waiting) % pair->cap.max_send_wr];
	*request = (struct request){ .id = wr->wr_id, .opcode = wr->opcode, .flags = wr->send_flags,
				     .remote_addr = wr->wr.rdma.remote_addr,
				     .rkey = wr->wr.rdma.rkey, .imm = wr->imm_data,
				     .pieces = wr->num_sge };
	memcpy(request->sge, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	if (wr->send_flags & IBV_SEND_INLINE) {
		unsigned char *to = request->inlined;

		for (int n = 0; n < wr->num_sge; n++) {
			memcpy(to, (void *)(uintptr_t)wr->sg_list[n].addr, wr->sg_list[n].length);
			to += wr->sg_list[n].length;
		}
	}
	pair->waiting++;
	pair->held++;
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct pair *pair = (struct pair *)qp;
	int error = 0;

	pthread_mutex_lock(&lock);
	for (; wr && !error; wr = error ? wr : wr->next)
		error = take(pair, wr);
	if (error)
		*bad = wr;
	if (qp->state == IBV_QPS_ERR)
		flush(pair);
	else
		progress(pair);
	pthread_mutex_unlock(&lock);
	return error;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct pair *pair = (struct pair *)qp;
	int error = 0;

	pthread_mutex_lock(&lock);
	for (; wr; wr = wr->next) {
		struct receive *receive = &pair->receives[(pair->receive_head + pair->receive_count) %
							  pair->cap.max_recv_wr];

		if (qp->state == IBV_QPS_RESET || wr->num_sge < 0 ||
		    wr->num_sge > (int)pair->cap.max_recv_sge)
			error = EINVAL;
		else if (pair->receive_count == pair->cap.max_recv_wr)
			error = ENOMEM;
		if (error) {
			*bad = wr;
			break;
		}
		receive->id = wr->wr_id;
		receive->pieces = wr->num_sge;
		memcpy(receive->sge, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
		pair->receive_count++;
	}
	if (qp->state == IBV_QPS_ERR)
		flush(pair);
	/* Somebody may have been waiting for this. */
	if (find(pair->attr.dest_qp_num))
		progress(find(pair->attr.dest_qp_num));
	pthread_mutex_unlock(&lock);
	return error;
}

# RabbitMQ (Erlang) and pika: 500 messages.
# packages: rabbitmq-server python3-pika
# needs: erl rabbitmq-server python3:pika
# pause: 6

setup() {
    mkdir m l
    chown rabbitmq m l
}

server3() {
    exec epmd -port $P3 -address $A
}

server() {
    exec env HOME=$D/m RABBITMQ_MNESIA_BASE=$D/m RABBITMQ_LOG_BASE=$D/l RABBITMQ_NODE_IP_ADDRESS=$A RABBITMQ_NODE_PORT=$P RABBITMQ_NODENAME=r$P@localhost RABBITMQ_DIST_PORT=$P2 RABBITMQ_ENABLED_PLUGINS_FILE=/dev/null RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-rabbit loopback_users []' ERL_EPMD_PORT=$P3 /usr/lib/rabbitmq/bin/rabbitmq-server
}

client() {
    /usr/bin/python3 -I - <<'EOF'
import pika,os
c=pika.BlockingConnection(pika.ConnectionParameters(os.environ['A'],int(os.environ['P'])));h=c.channel();h.queue_declare('q')
for i in range(500): h.basic_publish('','q',b'x'*(i*20))
n=0
import time
end=time.time()+20
while n<500 and time.time()<end:
  m,p,b=h.basic_get('q',auto_ack=True)
  if m: assert b==b'x'*(n*20); n+=1
print(n)
c.close()
EOF
}

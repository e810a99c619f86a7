# ActiveMQ (Java), and STOMP: 300 messages.
# packages: activemq python3-stomp
# needs: activemq java python3:stomp

setup() {
    mkdir conf data
    cat >conf/activemq.xml <<EOF
<beans xmlns="http://www.springframework.org/schema/beans" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="http://www.springframework.org/schema/beans http://www.springframework.org/schema/beans/spring-beans.xsd http://activemq.apache.org/schema/core http://activemq.apache.org/schema/core/activemq-core.xsd">
<broker xmlns="http://activemq.apache.org/schema/core" brokerName="x" useJmx="false" persistent="false" dataDirectory="$D/data">
<transportConnectors><transportConnector name="stomp" uri="stomp+nio://$A:$P"/></transportConnectors>
</broker></beans>
EOF
    cat >c.py <<'EOF'
import os, stomp, threading
done = threading.Event()
sizes = []
class Listener(stomp.ConnectionListener):
    def on_message(self, frame, *_):
        sizes.append(len(frame.body))
        if len(sizes) == 300: done.set()
c = stomp.Connection([(os.environ['A'], int(os.environ['P']))])
c.set_listener('', Listener())
c.connect(wait=True)
c.subscribe('/queue/q', id=1)
for n in range(300):
    c.send('/queue/q', 'x' * n * 50)
print(done.wait(60), sizes == [n * 50 for n in range(300)])
c.disconnect()
EOF
}

server() {
    exec java -Dactivemq.home=/usr/share/activemq -Dactivemq.base=$D -Dactivemq.conf=$D/conf -Dactivemq.data=$D/data -jar /usr/share/activemq/bin/activemq.jar start xbean:file:$D/conf/activemq.xml
}

client() {
    /usr/bin/python3 c.py
}
